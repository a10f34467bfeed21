// Two results side by side: the settings that differ, the metrics, and the latencies of the same requests.

#ifndef KVTWIN_SCENARIOS_OUTPUT_COMPARE_RUNS_H_
#define KVTWIN_SCENARIOS_OUTPUT_COMPARE_RUNS_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "scenarios/output/compare.h"
#include "scenarios/output/summary.h"
#include "traces/proto/run.pb.h"

namespace kvtwin {

struct RunsComparison {
  struct Setting {
    std::string field, first, second;  // "" where a run has no such field
  };
  struct Metric {
    std::string name, unit;
    double first = 0, second = 0;
    // Absent if `first` is 0 and `second` is not.
    std::optional<double> difference_percent() const;
  };
  // Requests that both runs finished, matched by session and place.
  struct SameRequests {
    size_t requests = 0, faster = 0, slower = 0;  // by more than 1 % of the first run's latency
    double median_percent = 0;                    // of the differences of their latencies
  };

  std::string first, second;  // names for people
  bool measured = false;      // one of them has no settings: a real server's run
  bool same_decisions = false;
  std::vector<Setting> settings;
  std::vector<Metric> metrics;  // of those that both runs have; all of them, in the order of the reference
  std::optional<SameRequests> same;
};

struct ComparedRun {
  std::string name;
  v1::RunResult result;
  std::vector<Request> requests;  // empty: not known
};

RunsComparison compare_runs(const ComparedRun& first, const ComparedRun& second);

// The table has the metrics that people ask for first; json and csv have all.
std::string format_runs(const RunsComparison& comparison, OutputFormat format);

// Each limit bounds the size of one difference in percent: "ttft_p99=5". Returns a sentence per broken limit.
Result<std::vector<std::string>> broken_limits(const RunsComparison& comparison,
                                               const std::vector<std::string>& limits);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_OUTPUT_COMPARE_RUNS_H_
