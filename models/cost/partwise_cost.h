// PartwiseCost prices a step as dense work on its tokens + attention + output head.
//
// It is the base of our cost models. Dense work depends on the padded tokens alone, and the head on the
// tokens that sample alone, so their sums are memoised per count: a run of a million steps has a few hundred
// different counts. Only attention is computed for every step.

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

  // Full and sliding layers and requantised entries; or decodes, chunks, and the step's time outside its
  // operations.
  static constexpr size_t kAttentionOpsMax = 3;
  using AttentionOps = std::array<StepPart, kAttentionOpsMax>;

 private:
  // In running order; attention belongs after the op of kind kRope.
  virtual std::vector<StepPart> dense_ops(uint32_t tokens) const = 0;
  virtual std::vector<StepPart> head_ops(uint32_t rows) const = 0;
  // A factor on the time of all operations of the step.
  virtual double pace(const StepShape&) const { return 1; }
  // Stores the step's attention and requantisation, and returns the number of operations. Must not allocate
  // in steady state.
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
  Part spare_dense_, spare_head_;  // for counts beyond the memoised ones
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_PARTWISE_COST_H_
