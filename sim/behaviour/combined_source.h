// CombinedSource merges the answers of several OutcomeSources: retained counts from one, recalls from
// another.
//
// Each kind of outcome comes from exactly one source. Two sources that answer the same kind are an error in
// the composition of the backend.

#ifndef KVTWIN_SIM_BEHAVIOUR_COMBINED_SOURCE_H_
#define KVTWIN_SIM_BEHAVIOUR_COMBINED_SOURCE_H_

#include <vector>

#include "engine/runtime/outcome_source.h"

namespace kvtwin::sim {

class CombinedSource final : public OutcomeSource {
 public:
  // Asked and notified in this order; they must outlive this.
  explicit CombinedSource(std::vector<OutcomeSource*> parts) : parts_(std::move(parts)) {}

  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override;
  void notify(const Command& command) override;

 private:
  const std::vector<OutcomeSource*> parts_;
  DataOutcomes part_;
};

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_BEHAVIOUR_COMBINED_SOURCE_H_
