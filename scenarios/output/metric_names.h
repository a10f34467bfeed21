// The names of metrics: one for each, in every command. Their definitions are those of
// docs/reference/metrics.md, which is part of the program.

#ifndef KVTWIN_SCENARIOS_OUTPUT_METRIC_NAMES_H_
#define KVTWIN_SCENARIOS_OUTPUT_METRIC_NAMES_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace kvtwin {

struct MetricName {
  std::string name, unit, definition;
};

// In the order of the page.
const std::vector<MetricName>& metric_names();

// The metric that `word` means: a name itself, or a short or foreign form of one (ttft_p99, ttft.p99,
// latency.median, session_p90). "" if there is none.
std::string metric_name(std::string_view word);

// The full names of the metrics that `words` mean; empty words are skipped. Errors name --columns.
Result<std::vector<std::string>> metric_columns(const std::vector<std::string>& words);

// What to write instead of `word`, which is no metric.
std::string metric_hint(std::string_view word);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_OUTPUT_METRIC_NAMES_H_
