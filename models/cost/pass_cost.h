// PassCost prices the passes of probe tokens that a step runs after its chunks and decodes (Judge Q's soft
// tokens, KVzip's repetition of the context): each as a step of its own with one chunk of as many tokens,
// without logits. Another CostModel prices that step, and the chunks and decodes.
//
// A step of passes alone has no chunks and decodes: its host time is that of its first pass.

#ifndef KVTWIN_MODELS_COST_PASS_COST_H_
#define KVTWIN_MODELS_COST_PASS_COST_H_

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "models/cost/cost_model.h"
#include "models/cost/cost_on_top.h"

namespace kvtwin {

// Which passes take time here.
enum class PricedPasses : uint8_t {
  kAll,
  kNone,  // cost.compressions: "free"
};

class PassCost final : public CostOnTop {
 public:
  // REQUIRES: `model` is not null.
  PassCost(PricedPasses priced, std::unique_ptr<CostModel> model)
      : CostOnTop(std::move(model)), priced_(priced) {}

  StepCost step(const StepShape& shape) override;
  std::vector<StepPart> ops(const StepShape& shape) override;
  // The model's ranges of the chunks and decodes, and of each pass.
  StepRange range(const StepShape& shape) override;

 private:
  std::array<Ticks, kEvidenceKinds> passes(const StepShape& shape);

  const PricedPasses priced_;
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_PASS_COST_H_
