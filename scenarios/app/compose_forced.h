// Imposed: engines that compute values, made to perform what a record or behaviour models say that the data
// decided (simulation.impose; engine/runtime/forced_outcomes.h).

#ifndef KVTWIN_SCENARIOS_APP_COMPOSE_FORCED_H_
#define KVTWIN_SCENARIOS_APP_COMPOSE_FORCED_H_

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine/runtime/forced_outcomes.h"
#include "scenarios/app/compose_outcomes.h"

namespace kvtwin {

class ForcedEngines {
 public:
  // In engine order. Nothing is forced unless the scenario asks for it. Errors: a record that is none, a
  // method whose recalls no engine can be told.
  static Result<std::unique_ptr<ForcedEngines>> make(const Scenario& scenario, const Composed& composed,
                                                     const std::vector<ForcibleSource*>& engines);

  // The engines, told or not. This must outlive them.
  const std::vector<OutcomeSource*>& sources() const { return sources_; }
  // Before a step that somebody measures.
  void prepare(const LaunchStep& launch, uint32_t offset);

  // Once the run has ended: who said it, for results. Empty: there was nothing to say.
  std::string retained_by() const;
  std::string recalled_by() const;

 private:
  ForcedEngines() = default;

  std::string retained_ = "natural", recalled_ = "natural";  // unless it is forced
  std::unique_ptr<Outcomes> outcomes_;                       // null: nothing is forced
  std::deque<ForcedOutcomes> forced_;                        // by engine
  std::vector<OutcomeSource*> sources_;
};

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_APP_COMPOSE_FORCED_H_
