// Core is the policy of one serving engine, as a deterministic state machine.
//
// It receives events and returns commands. It reads no clock, opens no file, starts no thread, draws no
// random number and uses no floating point, so the simulator, a real engine and a replay run the same code.
// Time is an argument.

#ifndef KVTWIN_ENGINE_SCHEDULER_CORE_H_
#define KVTWIN_ENGINE_SCHEDULER_CORE_H_

#include <memory>
#include <vector>

#include "engine/base/commands.h"
#include "engine/base/events.h"
#include "engine/kv/kv_usage.h"
#include "engine/methods/axes.h"
#include "engine/methods/config.h"

namespace kvtwin {

// Exact counts of the resources that one engine holds, for metrics and tests.
struct CoreGauges : KvUsage {
  uint32_t requests_running = 0;
  uint32_t requests_waiting = 0;
  bool step_in_flight = false;  // of running requests, or of requests preempted since its launch
};

class Core {
 public:
  // REQUIRES: validate_core_config(config) returns nullopt.
  explicit Core(const CoreConfig& config);
  // With the caller's own policies instead of those that config.policies names (its parameters still apply).
  // REQUIRES: validate_limits(config) and validate_axes(axes, ...) return nullopt.
  Core(const CoreConfig& config, PolicyAxes axes);
  ~Core();
  Core(Core&&) noexcept;

  // Applies `event`, which happened at `now`, and appends the resulting commands to *commands.
  // REQUIRES: `now` does not decrease from call to call.
  void apply(Instant now, const Event& event, std::vector<Command>* commands);

  // Leading tokens of the prompt whose KV need be neither computed nor copied from a lower tier: in whole
  // pages on the GPU (placement resident: on the host), or in whole chunks if prefixes are compressed.
  // Routers query it. Changes nothing, and does not depend on whether steps were coalesced.
  uint32_t tokens_cached(const RequestReady& request) const;

  // True if no request is known and nothing is in flight.
  bool idle() const;
  CoreGauges gauges() const;
  // Fingerprint of all decisions so far, without times; independent of the coalescing of steps.
  uint64_t digest() const;
  // Verifies every numbered invariant (G-5, X-3, X-4 of docs/design/methods/composition.md#invariants, and
  // those of the parts).
  void check_invariants() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_SCHEDULER_CORE_H_
