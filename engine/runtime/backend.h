// The backend interface. Everything above it decides; everything below it is a backend that takes time.
//
// Implementations: sim/sim_backend.h (SimGrid), engine/cpu and engine/cuda (real engines),
// engine/recorder/recorder.h (a recorded run), tests/support/script_backend.h (an adversary with a seed). The
// policy cannot tell which one it runs on, and there is deliberately no way to ask.

#ifndef KVTWIN_ENGINE_RUNTIME_BACKEND_H_
#define KVTWIN_ENGINE_RUNTIME_BACKEND_H_

#include "engine/base/commands.h"
#include "engine/base/events.h"

namespace kvtwin {

class Backend {
 public:
  virtual ~Backend() = default;

  // Starts `command`. Returns at once; the answer arrives later through next(). Never calls back.
  // Steps of one engine run one after the other, in the order of their launch; at most
  // CoreConfig::steps_in_flight_max launches are unanswered.
  virtual void submit(const Command& command) = 0;

  // Waits for the next thing that happens and stores it. `now` never goes backwards. Things of the
  // same instant come in this order: StepDone by engine, transfers by engine and number, timers in
  // the order they were set.
  // A launch with repeat > 1 is answered when its last step ends, unless interrupt() came before. With
  // steps_in_flight_max == 2 it is answered when its last but one ends, so that the next step can be
  // planned while the last runs, and the last is answered separately.
  // Returns false when nothing is in flight and no timer is set.
  virtual bool next(Instant* now, Event* event) = 0;

  // Something outside the backend (a request, a cancellation) is about to be told to `engine` at the
  // instant next() last gave. The caller asks until the answer is false:
  //   true   steps had ended at or before now and were not answered yet: *event is their StepDone, in
  //          the same pieces that next() would have given;
  //   false  nothing is left to tell. A launch in flight now ends at the first boundary that is still
  //          open: the step that runs completes, and with steps_in_flight_max == 2 the one after it (it
  //          was already launched); later steps of the launch never run. What remains is answered
  //          separately, step by step.
  virtual bool interrupt(EngineId engine, Event* event) = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_RUNTIME_BACKEND_H_
