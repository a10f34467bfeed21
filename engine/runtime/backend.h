// Backend is the interface between the policy, which decides, and what carries out its commands and takes
// time.
//
// Implementations: sim/sim_backend.h (SimGrid), engine/common/cpu_backend.h (the CPU and CUDA engines),
// engine/recorder/recorder.h (a recorded run), tests/support/script_backend.h (a seeded adversary). The
// policy cannot detect which one it runs on, by design.
//
// What a backend knows of a request (the positions that each head retains, scorer state, dropped slots, page
// summaries) is its own; the policy never sees it. It lives until the request ends or starts anew, i.e. until
// an entry with `first` and without `swapped_in`. In particular it survives a swap: kSwapOut copies the pages
// alone, in the order of the request's tables, and when the request continues, its PrefixHit lists the same
// pages, in the same order, under other numbers.

#ifndef KVTWIN_ENGINE_RUNTIME_BACKEND_H_
#define KVTWIN_ENGINE_RUNTIME_BACKEND_H_

#include "engine/base/commands.h"
#include "engine/base/events.h"

namespace kvtwin {

class Backend {
 public:
  virtual ~Backend() = default;

  // Starts `command`. Returns at once; the answer arrives later through next(). Never calls back.
  // Steps of one engine run one after another, in the order of their launch. At most
  // CoreConfig::steps_in_flight_max launches are unanswered.
  virtual void submit(const Command& command) = 0;

  // Waits for the next event and stores it. `now` never decreases. Events of the same instant come in this
  // order: StepDone by engine, transfers by engine and number, timers in the order they were set.
  //
  // A launch with repeat > 1 is answered when its last step ends, unless interrupt() is called before. With
  // steps_in_flight_max == 2 it is answered when its last step but one ends, so that the next step can be
  // planned while the last runs; the last is answered separately.
  //
  // Returns false when nothing is in flight and no timer is set.
  virtual bool next(Instant* now, Event* event) = 0;

  // An event from outside the backend (a request, a cancellation) is about to be delivered to `engine`, at
  // the instant that next() last returned. The caller repeats the call until it returns false:
  //   true   steps had ended at or before now and were not answered yet: *event is their StepDone, divided
  //          as next() would have divided them;
  //   false  no ended step is unanswered. A launch in flight now ends at the first boundary that is still
  //          open: the running step completes, and with steps_in_flight_max == 2 also the one after it
  //          (which is already launched); later steps of the launch never run. Each remaining step is
  //          answered separately.
  virtual bool interrupt(EngineId engine, Event* event) = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_RUNTIME_BACKEND_H_
