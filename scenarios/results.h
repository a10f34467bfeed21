// What a run leaves on disk, and the message it is made from. Nothing in it knows the time of day, the
// machine or the user: two runs of the same inputs write the same bytes.

#ifndef KVTWIN_SCENARIOS_RESULTS_H_
#define KVTWIN_SCENARIOS_RESULTS_H_

#include <string>
#include <string_view>
#include <vector>

#include "engine/metrics.h"
#include "engine/metrics_summary.h"
#include "scenarios/compose.h"
#include "traces/proto/run.pb.h"

namespace kvtwin {

// What one GPU in use costs. A node's own price is that of all its GPUs.
struct GpuPrice {
  double usd_per_hour = 0;
  bool known = false, assumed = false;
};
GpuPrice price_of(const EngineKind& kind);

// The format of results that this version writes and reads.
inline constexpr uint32_t kResultSchema = 1;
void fill(const Distribution& in, v1::Distribution* out);

v1::RunResult make_result(const Scenario& scenario, const Composed& composed, const Metrics& metrics,
                          const SimulatedEnd& simulated, uint64_t inputs);

// One row per call, by call: time points, counts and the attribution of its time, in ns.
std::string calls_csv(const Composed& composed, const Metrics& metrics);

// One row per tool or opaque agent, in order of release: what a session did between its calls. "" if there
// was none.
std::string tools_csv(const Composed& composed);

// One object per finished call, in the order of the trace, with the field names and seconds that vLLM's
// request logs have: what `kvtwin compare` reads on both sides.
std::string requests_jsonl(const Composed& composed, const Metrics& metrics);

struct RunFile {
  std::string name;
  std::string bytes;
};

// Writes each file under a temporary name first, so that what bears the right name is whole. A mistake
// here is the environment's (exit status 3).
Result<void> write_files(const std::string& dir, const std::vector<RunFile>& files);

// Whether a run of `inputs` may take the place of what `dir` holds: no result, one of the same inputs, or
// `force`.
Result<void> check_replaceable(const std::string& dir, uint64_t inputs, bool force);

// Puts a run's files into `dir` in place of an earlier run's, so that `dir` never holds files of two. The
// files are written to a folder beside it, and the two change places: a crash leaves the old result or the
// new one. Files that no run writes stay; where there are any, the folder itself stays too, and a crash may
// leave no result. A mistake here is the environment's.
Result<void> replace_run(const std::string& dir, const std::vector<RunFile>& files);

// The result that a directory holds.
Result<v1::RunResult> read_result(const std::string& dir);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_RESULTS_H_
