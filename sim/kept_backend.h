// KeptBackend answers compressions for a world that only takes time: it asks an OutcomeSource what each one
// keeps when the step is launched, and adds the answer to the step's StepDone.
//
// Steps with compressions are never folded, so there is one StepDone for each. Sources that must be asked
// for every single step of a stretch need a world that asks them itself.

#ifndef KVTWIN_SIM_KEPT_BACKEND_H_
#define KVTWIN_SIM_KEPT_BACKEND_H_

#include <deque>
#include <vector>

#include "engine/backend.h"
#include "engine/outcome_source.h"

namespace kvtwin::sim {

class KeptBackend final : public Backend {
 public:
  // `sources` by engine; null: that engine compresses nothing that the data decides. `world` and they must
  // outlive this.
  KeptBackend(Backend* world, std::vector<OutcomeSource*> sources)
      : world_(world), sources_(std::move(sources)) {}

  void submit(const Command& command) override;
  bool next(Instant* now, Event* event) override;
  bool interrupt(EngineId engine, Event* event) override;

 private:
  struct Pending {
    EngineId engine{};
    StepId step{};
    StepValues values;
  };
  void add_kept(Event* event);

  Backend* const world_;
  const std::vector<OutcomeSource*> sources_;
  std::deque<Pending> pending_;
  StepValues told_;  // what the last StepDone points into
};

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_KEPT_BACKEND_H_
