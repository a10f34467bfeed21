// The files of a run's result, and the message they are made from. Nothing in them knows the time of day, the
// machine or the user: two runs of the same inputs write the same bytes.

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

// What one GPU in use costs. A node's own price is that of all its GPUs.
struct GpuPrice {
  double usd_per_hour = 0;
  bool known = false, assumed = false;
};
GpuPrice price_of(const EngineKind& kind);

void fill(const Distribution& in, v1::Distribution* out);

v1::RunResult make_result(const Scenario& scenario, const Composed& composed, const Metrics& metrics,
                          const SimulatedEnd& simulated, uint64_t inputs);

// One row per request, by request: time points, counts and the attribution of its time, in ns.
std::string requests_csv(const Composed& composed, const Metrics& metrics);

// One row per tool or opaque agent, in order of release: what a session did between its requests. "" if there
// was none.
std::string tools_csv(const Composed& composed);

// One object per finished request, in the order of the trace, with the field names and seconds that vLLM's
// request logs have: what `kvtwin compare` reads on both sides.
std::string requests_jsonl(const Composed& composed, const Metrics& metrics);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_APP_RESULTS_H_
