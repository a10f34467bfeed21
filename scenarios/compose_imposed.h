// Imposed: engines that compute values, made to perform what a record or behaviour models say that the data
// decided (simulation.impose; engine/imposed_source.h).

#ifndef KVTWIN_SCENARIOS_COMPOSE_IMPOSED_H_
#define KVTWIN_SCENARIOS_COMPOSE_IMPOSED_H_

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine/imposed_source.h"
#include "scenarios/compose_outcomes.h"

namespace kvtwin {

class Imposed {
 public:
  // In engine order. Nothing is imposed unless the scenario asks for it. Mistakes: a record that is none, a
  // method whose recalls no engine can be told.
  static Result<std::unique_ptr<Imposed>> make(const Scenario& scenario, const Composed& composed,
                                               const std::vector<ImposableSource*>& engines);

  // The engines, told or not. This must outlive them.
  const std::vector<OutcomeSource*>& sources() const { return sources_; }
  // Before a step that somebody measures.
  void prepare(const LaunchStep& launch, uint32_t offset);

  // Once the run has ended: who said it, for results. Empty: there was nothing to say.
  std::string kept_by() const;
  std::string recalled_by() const;

 private:
  Imposed() = default;

  std::string kept_ = "natural", recalled_ = "natural";  // unless it is imposed
  std::unique_ptr<Outcomes> outcomes_;                   // null: nothing is imposed
  std::deque<ImposedSource> told_;                       // by engine
  std::vector<OutcomeSource*> sources_;
};

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_COMPOSE_IMPOSED_H_
