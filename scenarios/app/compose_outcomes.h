// Outcomes: who says what the data decided in the engines of a simulated run. Values (an engine that computes
// them), else a record of another run, else behaviour models; what is retrieved and what is kept may differ
// in that.

#ifndef KVTWIN_SCENARIOS_APP_COMPOSE_OUTCOMES_H_
#define KVTWIN_SCENARIOS_APP_COMPOSE_OUTCOMES_H_

#include <memory>
#include <string>
#include <vector>

#include "engine/recorder/recorder_outcomes.h"
#include "scenarios/app/compose.h"
#include "sim/behaviour/behaviour_recorded.h"
#include "sim/sim_backend.h"

namespace kvtwin {

class Outcomes {
 public:
  // `values` by engine, or empty. Errors: a record that is none, or is of other engines.
  static Result<std::unique_ptr<Outcomes>> make(const Scenario& scenario, const Composed& composed,
                                                const std::vector<OutcomeSource*>& values);

  // Engine `engine`'s source, whichever way it is asked. REQUIRES: there is something to say.
  OutcomeSource* of(size_t engine) const {
    const Engine& one = engines_.at(engine);
    return one.source != nullptr ? one.source : one.retention;
  }
  // Gives each engine its source. `log`, if there is one, writes down what they say. This must outlive the
  // run.
  void attach(sim::SimConfig* config, OutcomeLog* log) const;

  // Once the run has ended: who said it, for results. Empty: there was nothing to say.
  std::string retained_by() const;
  std::string recalled_by() const;

 private:
  struct Engine {
    OutcomeSource* source = nullptr;     // asked as a step starts
    OutcomeSource* retention = nullptr;  // asked as it is launched
  };
  Outcomes() = default;
  void add_engine(const Scenario& scenario, const Composed& composed, size_t engine);
  template <typename T>
  OutcomeSource* own(std::unique_ptr<T> source) {
    owned_.push_back(std::move(source));
    return owned_.back().get();
  }
  std::string said_by(const std::string& outcomes, const sim::RecordedSource::Counts& counts) const;

  RecordedOutcomes record_;
  std::vector<std::unique_ptr<OutcomeSource>> owned_;
  std::vector<const sim::RecordedSource*> recorded_;
  std::vector<Engine> engines_;
  std::string retained_, recalled_;  // as the scenario has it
};

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_APP_COMPOSE_OUTCOMES_H_
