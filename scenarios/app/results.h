// The files of a run's result, and the message that they are made from. They contain no time of day, machine
// or user: two runs of the same inputs write the same bytes.

#ifndef KVTWIN_SCENARIOS_APP_RESULTS_H_
#define KVTWIN_SCENARIOS_APP_RESULTS_H_

#include <string>
#include <string_view>
#include <vector>

#include "engine/metrics/metrics.h"
#include "engine/metrics/metrics_summary.h"
#include "scenarios/app/compose.h"
#include "scenarios/output/result_folder.h"
#include "traces/proto/run.pb.h"

namespace kvtwin {

// The price of one GPU in use. A node's own price covers all its GPUs.
struct GpuPrice {
  double usd_per_hour = 0;
  bool known = false, assumed = false;
};
GpuPrice price_of(const EngineKind& kind);

void fill(const Distribution& in, v1::Distribution* out);

v1::RunResult make_result(const Scenario& scenario, const Composed& composed, const Metrics& metrics,
                          const SimulatedEnd& simulated, uint64_t inputs);

// One row per request, in order of request id: time points, counts and the attribution of its latency, in ns.
std::string requests_csv(const Composed& composed, const Metrics& metrics);

// One row per tool or opaque agent, in order of release: a session's work between requests. "" if there was
// none.
std::string tools_csv(const Composed& composed);

// One JSON object per finished request, in trace order, with the field names and seconds of vLLM's request
// logs; `kvtwin compare` reads this format on both sides.
std::string requests_jsonl(const Composed& composed, const Metrics& metrics);

// The files of a run's folder. `observed`: those of additional observers (log, timeline). run.binpb is the
// last: a folder that has it is complete.
std::vector<RunFile> result_files(const v1::RunResult& result, const Composed& composed,
                                  const Metrics& metrics, std::vector<RunFile> observed);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_APP_RESULTS_H_
