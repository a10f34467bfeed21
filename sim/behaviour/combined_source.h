// CombinedSource puts the answers of several OutcomeSources together: what compressions keep from one, what
// retrieval recalls from another.
//
// Each value of a step comes from one of them: two that both say what is kept, or both what is recalled, are
// an error in how the backend was put together.

#ifndef KVTWIN_SIM_BEHAVIOUR_COMBINED_SOURCE_H_
#define KVTWIN_SIM_BEHAVIOUR_COMBINED_SOURCE_H_

#include <vector>

#include "engine/runtime/outcome_source.h"

namespace kvtwin::sim {

class CombinedSource final : public OutcomeSource {
 public:
  // Asked, and told, in this order; they must outlive this.
  explicit CombinedSource(std::vector<OutcomeSource*> parts) : parts_(std::move(parts)) {}

  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override;
  void notify(const Command& command) override;

 private:
  const std::vector<OutcomeSource*> parts_;
  DataOutcomes part_;
};

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_BEHAVIOUR_COMBINED_SOURCE_H_
