// Private state of Metrics. Included by metrics*.cc only.

#ifndef KVTWIN_ENGINE_METRICS_METRICS_STATE_H_
#define KVTWIN_ENGINE_METRICS_METRICS_STATE_H_

#include <deque>
#include <utility>
#include <vector>

#include "engine/metrics/metrics.h"

namespace kvtwin {

constexpr uint32_t kNone = UINT32_MAX;  // no index

template <typename T>
T& at_grown(std::vector<T>& items, size_t index) {
  if (index >= items.size()) items.resize(index + 1);
  return items[index];
}

// State of a request that is needed only until it ends.
struct Metrics::Live {
  enum class Phase : uint8_t { kQueue, kPrefill, kDecode };
  Phase phase = Phase::kQueue;
  bool admitted_before = false;
  uint32_t computed = 0;                 // highest context + tokens of its chunks so far
  uint32_t recompute_until = 0;          // chunks below this position repeat discarded work
  StepId admitted_step{};                // entries of earlier steps belong to a revoked admission
  Instant mark{};                        // all time before it has been attributed
  Duration host_mark{}, exposed_mark{};  // the engine's totals at `mark`
  Instant last_token = kNever;           // of a request that was preempted or handed over
};

// The part of a LaunchStep that is needed when it is answered.
struct Metrics::Launch {
  uint64_t step = 0;
  uint64_t repeat = 0;
  Instant at{};
  uint32_t entries = 0;
  uint32_t decodes = 0;
  uint64_t kv_entries = 0, slots = 0;               // after its first step
  uint64_t full = 0;                                // KV entries then, without dropping; 0: none are dropped
  uint64_t growing = 0, growing_full = 0;           // added by each further step
  uint64_t raw = 0, effective = 0;                  // reads of the next step's decodes
  uint32_t longest_raw = 0, longest_effective = 0;  // of the first step's decodes; a step adds at most one
  uint32_t longest_grows = 0;                       // what each further step adds to longest_effective
  uint32_t grown = 0;              // entries that read one more KV entry in each further step
  std::vector<PlanEntry> chunks;   // empty if repeat > 1
  std::vector<RequestId> arrived;  // requests that decode here for the first time; empty if repeat > 1
  // Pages allocated for later steps: offsets, ascending, > 0. Resident pages grow independently of the
  // context.
  std::vector<uint32_t> slot_offsets;  // of pages that hold the context
  std::vector<uint32_t> held_offsets;  // of GPU pages
  size_t slots_reached = 0;            // number of slot_offsets whose step has begun
  size_t allocations_held = 0;  // number of held_offsets that single-step launches would have made by now
};

struct Metrics::Transfer {
  TransferId id{};
  TransferKind kind{};
  Instant at{};
  Tier source{}, target{};
  uint64_t pages = 0;
  uint32_t recall = kNone;
  RequestId request{};  // kReceive: the request whose KV comes from another engine
};

struct Metrics::Engine {
  struct Recall {
    Instant start{}, done = kNever;
  };
  EngineTotals totals;
  std::deque<Launch> launches;  // unanswered, oldest first
  std::vector<Launch> spare;
  Duration step_exposed{};  // StepOutcome.exposed, summed
  bool any_step_ended = false;
  bool step_running = false;
  Instant last_end{};
  Instant ticked{};
  std::vector<RequestId> inbox;     // ready, not yet queued
  std::vector<Transfer> transfers;  // in flight
  std::vector<Recall> recalls;
  std::vector<uint32_t> recall_of_page;  // 1 + index into `recalls`; 0: none
  uint64_t steps_ended = 0;
  uint64_t pages_int2_held = 0;
  uint64_t pages_held = 0;  // as CoreGauges counts: without pages allocated further ahead
  Instant pages_at{};
  CoreGauges gauges;
  Instant gauges_at{};
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METRICS_METRICS_STATE_H_
