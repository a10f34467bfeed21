// The one loop that joins Client, Router, Cores and a world. All backends run it; none has a copy.

#ifndef KVTWIN_ENGINE_RUNTIME_DRIVER_H_
#define KVTWIN_ENGINE_RUNTIME_DRIVER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/router/router.h"
#include "engine/runtime/backend.h"
#include "engine/runtime/client.h"
#include "engine/scheduler/core.h"

namespace kvtwin {

// Watches a run: metrics, recorder, timeline. Sees everything in the order it was applied and decides
// nothing. Spans are valid during the request only.
class Observer {
 public:
  virtual ~Observer() = default;
  // `engine` is where the event was applied; RequestReady is seen after it was placed.
  virtual void saw_event(Instant now, EngineId engine, const Event& event) {
    (void)now, (void)engine, (void)event;
  }
  virtual void saw_command(Instant now, const Command& command) { (void)now, (void)command; }
  // After each apply, when all its commands were seen.
  virtual void saw_state(Instant now, EngineId engine, const Core& core) {
    (void)now, (void)engine, (void)core;
  }
};

struct RunOptions {
  RoutingKind routing = RoutingKind::kRoundRobin;
  // Engines [0, prefill_engines) compute prompts, the others decode (commands.h, HandOver): a Router for
  // each. 0: all engines do both. REQUIRES: fewer than engines, and CoreConfig::prefill_only says the same.
  uint32_t prefill_engines = 0;
  std::vector<CoreConfig> engines;  // at least one; engines[i].engine == EngineId{i}
  bool check_invariants = false;    // after every apply: tests
  // What makes an engine's policies; null: the registry.
  std::function<PolicyAxes(const CoreConfig&)> make_axes;
};

struct RunEnd {
  Instant ended_at{};
  uint64_t digest = 0;  // Cores in engine order, then the Routers
  uint64_t events = 0;
  bool idle = false;  // every request was answered
};

// Runs until the backend has nothing more to say. Ends early, with idle == false, only if a Core is left
// waiting for something that never happens.
RunEnd run(const RunOptions& options, Client* client, Backend* backend,
           const std::vector<Observer*>& observers);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_RUNTIME_DRIVER_H_
