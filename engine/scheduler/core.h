// Core is the whole policy of one serving engine as one deterministic state machine.
//
// It is handed events and answers with commands. It reads no clock, opens no file, starts no thread,
// draws no random number and uses no floating point, so the simulator, a real engine and a replay run
// this very code. Time is an argument, not a service.

#ifndef KVTWIN_ENGINE_SCHEDULER_CORE_H_
#define KVTWIN_ENGINE_SCHEDULER_CORE_H_

#include <memory>
#include <vector>

#include "engine/base/commands.h"
#include "engine/base/events.h"
#include "engine/methods/axes.h"
#include "engine/methods/config.h"

namespace kvtwin {

// Exact counts of what one engine holds, for metrics and tests.
struct CoreGauges {
  uint32_t requests_running = 0;
  uint32_t requests_waiting = 0;
  bool step_in_flight = false;  // of requests that run, or that were preempted since it was launched
  uint32_t pages_gpu_total = 0;
  uint32_t pages_gpu_free = 0;    // nobody's
  uint32_t pages_gpu_cached = 0;  // only the prefix index holds them: can be had by evicting
  uint32_t pages_gpu_held = 0;    // requests or transfers need them
  uint64_t pages_evicted = 0;     // that left the prefix index to make room, so far
  uint32_t pages_host_total = 0;
  uint32_t pages_host_free = 0;
  uint32_t pages_disk_total = 0;
  uint32_t pages_disk_free = 0;
  // Formats by tag; the rest of the pages are int4.
  uint32_t pages_int2_total = 0;
  uint32_t pages_int2_held = 0;
  // KV entries that running requests can read, and slots in their pages; shared ones once per request.
  // A KV entry is one token in all heads of one group.
  uint64_t entries_held = 0;
  uint64_t slots_held = 0;
};

class Core {
 public:
  // REQUIRES: validate_core_config(config) found nothing wrong.
  explicit Core(const CoreConfig& config);
  // With policies of your own instead of those that config.policies names (its numbers still count).
  // REQUIRES: validate_limits(config) and validate_axes(axes, ...) found nothing wrong.
  Core(const CoreConfig& config, PolicyAxes axes);
  ~Core();
  Core(Core&&) noexcept;

  // Applies `event`, which happened at `now`, and appends what should happen next to *commands.
  // REQUIRES: `now` is not before the `now` of the previous call.
  void apply(Instant now, const Event& event, std::vector<Command>* commands);

  // Leading tokens of the prompt whose KV need not be computed nor copied from a lower tier: in whole pages
  // on the gpu (placement resident: on the host), in whole chunks where prefixes are compressed. Asked by
  // routers. Changes nothing, and is the same whether steps were coalesced or not.
  uint32_t tokens_cached(const RequestReady& request) const;

  // No request is known and nothing is in flight.
  bool idle() const;
  CoreGauges gauges() const;
  // Fingerprint of all decisions so far, without times; the same whether steps were coalesced or not.
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
