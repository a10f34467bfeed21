// RangeEndCost prices every step at one end of its range: what a run takes if all steps are as fast, or as
// slow, as in nine of ten cases. Steps of a real run are not all at the same end.

#ifndef KVTWIN_MODELS_COST_RANGE_END_COST_H_
#define KVTWIN_MODELS_COST_RANGE_END_COST_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "models/cost/cost_on_top.h"

namespace kvtwin {

enum class RangeEnd : uint8_t { kLow, kHigh };

class RangeEndCost final : public CostOnTop {
 public:
  // REQUIRES: `below` is not null.
  RangeEndCost(RangeEnd end, std::unique_ptr<CostModel> below) : CostOnTop(std::move(below)), end_(end) {}

  StepCost step(const StepShape& shape) override;
  StepRange range(const StepShape& shape) override { return below().range(shape); }
  std::vector<StepPart> ops(const StepShape& shape) override;

 private:
  Ticks device(const StepShape& shape);

  const RangeEnd end_;
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_RANGE_END_COST_H_
