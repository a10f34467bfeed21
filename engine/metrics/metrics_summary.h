// Summary holds a run's totals and distributions. summarise() computes it from Metrics, by arithmetic alone.
//
// Percentiles are nearest-rank: the p-th is the element with rank ceil(p/100 * n) of the n sorted values, so
// every percentile is a value that occurred. (vLLM and numpy interpolate between neighbours, and so does the
// comparison with their runs: scenarios/output/compare.h.)

#ifndef KVTWIN_ENGINE_METRICS_METRICS_SUMMARY_H_
#define KVTWIN_ENGINE_METRICS_METRICS_SUMMARY_H_

#include <array>
#include <cstdint>
#include <vector>

#include "engine/metrics/metrics.h"

namespace kvtwin {

// Distribution of durations, in ns. All fields are 0 if count is 0.
struct Distribution {
  uint64_t count = 0;
  double mean = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;

  friend bool operator==(const Distribution&, const Distribution&) = default;
};

// Sorts *values.
Distribution distribution(std::vector<double>* values);

struct Summary {
  uint64_t requests = 0, finished = 0, cancelled = 0, rejected = 0, open = 0;
  uint64_t sessions = 0, sessions_open = 0;
  Duration elapsed{};          // from first ready to last finished
  uint64_t prompt_tokens = 0;  // of finished requests, like all sums below
  uint64_t output_tokens = 0;
  double requests_per_s = 0, output_tokens_per_s = 0, prompt_tokens_per_s = 0;
  Distribution ttft, ttft_from_queued, tpot, itl, e2e;
  Distribution makespan;                        // per session, from first ready to last finished
  Distribution served;                          // makespan less tool and think time
  uint64_t admitted_prompt_tokens = 0;          // of all requests that were ever admitted
  uint64_t reused_tokens = 0;                   // of those, at first admission
  uint64_t reused_live = 0;                     // of those, tokens that still have a KV entry
  uint64_t reads_raw = 0, reads_effective = 0;  // tokens, summed over the decodes of all steps
  uint64_t peak_raw = 0, peak_effective = 0;    // of the longest decode
  uint64_t reused_again_tokens = 0, recomputed_tokens = 0;
  uint64_t preemptions = 0, requests_preempted = 0;
  uint64_t pages_gpu = 0, pages_held_peak = 0, pages_resident_peak = 0;  // summed over engines
  double pages_held_mean = 0;
  uint64_t pages_int2 = 0;  // of pages_gpu
  double pages_int2_held_mean = 0;
  uint64_t tokens_requantised = 0;
  double tail_fragmentation = 0, group_fragmentation = 0, reclaimed = 0;
  uint64_t steps = 0, request_steps = 0;
  double busy = 0;  // fraction of engine time in which a step ran
  uint64_t transfers = 0, transfers_failed = 0, bytes_in = 0, bytes_out = 0, bytes_received = 0;
  uint64_t bytes_from_disk = 0, bytes_to_disk = 0, pages_disk_peak = 0, hits_host = 0, hits_disk = 0;
  Duration transfer_exposed{}, transfer_hidden{};
  std::array<Integral, kTimeCategories> time_ns{};  // summed over finished requests
  Integral latency_ns = 0;                          // sum of their E2E; equals the sum of time_ns exactly

  friend bool operator==(const Summary&, const Summary&) = default;
};

Summary summarise(const Metrics& metrics);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METRICS_METRICS_SUMMARY_H_
