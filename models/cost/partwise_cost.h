// PartwiseCost: a step priced as dense work on its tokens + attention + output head.
//
// What all our cost models have in common. Dense work depends on the padded tokens alone and the head on
// the rows that sample alone, so their sums are remembered per count: a run of a million steps meets a few
// hundred different ones. Only attention is computed afresh.

#ifndef KVTWIN_MODELS_COST_PARTWISE_COST_H_
#define KVTWIN_MODELS_COST_PARTWISE_COST_H_

#include <array>
#include <vector>

#include "models/cost/cost_model.h"
#include "models/cost/host_time.h"

namespace kvtwin {

inline Ticks ticks_from_ns(double ns) { return static_cast<Ticks>(ns * kTicksPerNs + 0.5); }
inline Ticks ticks_from_us(double us) { return ticks_from_ns(us * 1e3); }

class PartwiseCost : public CostModel {
 public:
  StepCost step(const StepShape& shape) final;
  std::vector<StepPart> ops(const StepShape& shape) final;

 protected:
  explicit PartwiseCost(const HostTime& host);

  // Full layers and sliding ones, KV entries packed again; or decodes, chunks, and what a step costs beside
  // its operations.
  static constexpr size_t kAttentionOpsMax = 3;
  using AttentionOps = std::array<StepPart, kAttentionOpsMax>;

 private:
  // In running order; attention belongs after the op of kind kRope.
  virtual std::vector<StepPart> dense_ops(uint32_t tokens) const = 0;
  virtual std::vector<StepPart> head_ops(uint32_t rows) const = 0;
  // What all of the step's operations take, as a multiple of what they are said to take.
  virtual double pace(const StepShape&) const { return 1; }
  // Stores the step's attention, and what is packed again beside it, and returns how many operations it has.
  // Must not allocate in steady state.
  virtual size_t attention_ops(const StepShape& shape, AttentionOps* out) = 0;

  struct Part {
    bool ready = false;
    std::array<Ticks, kEvidenceKinds> by_evidence{};
  };
  StepCost paced(const StepShape& shape);
  const Part& dense(uint32_t tokens);
  const Part& head(uint32_t rows);

  HostTime host_;
  std::vector<Part> dense_parts_, head_parts_;
  Part spare_dense_, spare_head_;  // for counts beyond what is remembered
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_PARTWISE_COST_H_
