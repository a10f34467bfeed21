// Forced outcomes: value-computing engines follow a recording or behaviour models instead of their own
// data-dependent outcomes (simulation.impose; engine/runtime/forced_outcomes.h).

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
  // `engines` are in engine order. Nothing is forced unless the scenario asks for it. Errors: an invalid
  // recording; a method whose recalls cannot be forced.
  static Result<std::unique_ptr<ForcedEngines>> make(const Scenario& scenario, const Composed& composed,
                                                     const std::vector<ForcibleSource*>& engines);

  // The engines as outcome sources, wrapped if outcomes are forced. This object must outlive them.
  const std::vector<OutcomeSource*>& sources() const { return sources_; }
  // Prepares the outcomes of a step outside its measured time.
  void prepare(const LaunchStep& launch, uint32_t offset);

  // For results, after the run: the source of the outcomes. Empty: there were none.
  std::string retained_by() const;
  std::string recalled_by() const;

 private:
  ForcedEngines() = default;

  std::string retained_ = "natural", recalled_ = "natural";  // unless forced
  std::unique_ptr<Outcomes> outcomes_;                       // null: nothing is forced
  std::deque<ForcedOutcomes> forced_;                        // by engine
  std::vector<OutcomeSource*> sources_;
};

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_APP_COMPOSE_FORCED_H_
