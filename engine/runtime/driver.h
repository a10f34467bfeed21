// run() is the event loop that connects Client, Routers, Cores and a backend. All backends use it.

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

// An Observer watches a run: metrics, recorder, timeline. It sees events and commands in the order in which
// they are applied, and decides nothing. Spans are valid only until its function returns.
class Observer {
 public:
  virtual ~Observer() = default;
  // `engine` is the engine that the event is applied to. RequestReady is seen after the request is placed.
  virtual void saw_event(Instant now, EngineId engine, const Event& event) {
    (void)now, (void)engine, (void)event;
  }
  virtual void saw_command(Instant now, const Command& command) { (void)now, (void)command; }
  // After each apply(), when all its commands have been seen.
  virtual void saw_state(Instant now, EngineId engine, const Core& core) {
    (void)now, (void)engine, (void)core;
  }
};

struct RunOptions {
  RoutingKind routing = RoutingKind::kRoundRobin;
  // Engines [0, prefill_engines) compute prompts and the others decode (commands.h, HandOver), with a Router
  // for each role. 0: all engines do both. REQUIRES: fewer than engines, and CoreConfig::prefill_only agrees.
  uint32_t prefill_engines = 0;
  std::vector<CoreConfig> engines;  // at least one; engines[i].engine == EngineId{i}
  bool check_invariants = false;    // after every apply(); for tests
  // Creates an engine's policies; null: the registry does.
  std::function<PolicyAxes(const CoreConfig&)> make_axes;
};

struct RunEnd {
  Instant ended_at{};
  uint64_t digest = 0;  // Cores in engine order, then the Routers
  uint64_t events = 0;
  bool idle = false;  // every request was answered
};

// Runs until the backend has no further events. RunEnd::idle is false only if a Core still waits for an event
// that never happens.
RunEnd run(const RunOptions& options, Client* client, Backend* backend,
           const std::vector<Observer*>& observers);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_RUNTIME_DRIVER_H_
