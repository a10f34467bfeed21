// StoredOutcomeBackend answers compressions for a backend that only models time: it asks an OutcomeSource
// what each one retains when the step is launched, and adds the answer to the step's StepDone.
//
// Steps with compressions are never coalesced, so each has its own StepDone. Sources that must be asked for
// every single step of a coalesced run need a backend that asks them itself.

#ifndef KVTWIN_SIM_BEHAVIOUR_STORED_OUTCOME_BACKEND_H_
#define KVTWIN_SIM_BEHAVIOUR_STORED_OUTCOME_BACKEND_H_

#include <deque>
#include <vector>

#include "engine/runtime/backend.h"
#include "engine/runtime/outcome_source.h"

namespace kvtwin::sim {

class StoredOutcomeBackend final : public Backend {
 public:
  // `sources` by engine; null: the data decides nothing in that engine's compressions. `backend` and the
  // sources must outlive this.
  StoredOutcomeBackend(Backend* backend, std::vector<OutcomeSource*> sources)
      : backend_(backend), sources_(std::move(sources)) {}

  void submit(const Command& command) override;
  bool next(Instant* now, Event* event) override;
  bool interrupt(EngineId engine, Event* event) override;

 private:
  struct Pending {
    EngineId engine{};
    StepId step{};
    DataOutcomes values;
  };
  void add_retained(Event* event);

  Backend* const backend_;
  const std::vector<OutcomeSource*> sources_;
  std::deque<Pending> pending_;
  DataOutcomes answered_;  // what the last StepDone points into
};

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_BEHAVIOUR_STORED_OUTCOME_BACKEND_H_
