// Outcomes selects the source of data-dependent outcomes for the engines of a simulated run: an engine that
// computes values, else a recording of another run, else behaviour models. Retrieval and retention may use
// different sources.

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
  // `values` has one source per engine, or is empty. Errors: an invalid recording, or one of other engines.
  static Result<std::unique_ptr<Outcomes>> make(const Scenario& scenario, const Composed& composed,
                                                const std::vector<OutcomeSource*>& values);

  // The source of engine `engine`: per step, else per launch. REQUIRES: the engine has a source.
  OutcomeSource* of(size_t engine) const {
    const Engine& one = engines_.at(engine);
    return one.source != nullptr ? one.source : one.retention;
  }
  // Sets each engine's source. `log`, if not null, records the outcomes. This object must outlive the run.
  void attach(sim::SimConfig* config, OutcomeLog* log) const;

  // For results, after the run: the source of the outcomes. Empty: there were none.
  std::string retained_by() const;
  std::string recalled_by() const;

 private:
  struct Engine {
    OutcomeSource* source = nullptr;     // queried when a step starts
    OutcomeSource* retention = nullptr;  // queried when a step is launched
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
  std::string retained_, recalled_;  // as the scenario names them
};

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_APP_COMPOSE_OUTCOMES_H_
