// compare: a run and a real server's request log, metric by metric.
//
// Definitions are the same on both sides: TTFT = first_token_ts - begin, TPOT = (last_token_ts -
// first_token_ts) / (output_toks - 1), latency = last_token_ts - begin. The begin is arrival_time, when the
// client sent the request, if all requests of both sides have it: the front end is then included, as in
// kvtwin run's ttft. Otherwise it is queued_ts, as in an engine's log. Percentiles interpolate between
// neighbours as numpy does: rank (n - 1) p / 100.

#ifndef KVTWIN_SCENARIOS_OUTPUT_COMPARE_H_
#define KVTWIN_SCENARIOS_OUTPUT_COMPARE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "scenarios/output/summary.h"

namespace kvtwin {

struct Request {
  std::string id;
  uint64_t input_tokens = 0;
  uint64_t output_tokens = 0;
  double queued_s = 0, first_token_s = 0, last_token_s = 0;
  // Absent: not in the log, or of another clock than queued_s (vLLM logs Unix time here).
  std::optional<double> arrival_s{};
};

// When the latencies of both requests begin: their arrivals, or where one is not known, when they were
// queued.
struct Begins {
  double first_s = 0, second_s = 0;
};
Begins begins_of(const Request& first, const Request& second);

// Reads one JSON object per line. `name` is used in messages.
Result<std::vector<Request>> parse_requests(std::string_view text, const std::string& name);

constexpr std::array<const char*, 3> kComparedMetrics = {"ttft", "tpot", "latency"};
constexpr std::array<const char*, 5> kComparedStatistics = {"mean", "median", "p90", "p95", "p99"};

struct ComparedRow {
  std::string metric, statistic;
  double real_ms = 0, ours_ms = 0;
  double difference_percent() const { return real_ms == 0 ? 0 : 100 * (ours_ms - real_ms) / real_ms; }
};

struct Comparison {
  std::vector<ComparedRow> rows;  // metrics in order, statistics within
  size_t requests = 0;            // compared
  size_t skipped = 0;             // the first requests, left out on both sides
  size_t not_in_log = 0;          // requests of the run that the log lacks; they are not compared
  std::string matched_by;         // "id" or "order"
  bool from_arrival = false;      // TTFT and latency begin at arrival_time; else at queued_ts
};

// Matches requests by id if `ours` has all ids of `real`, else by order. The requests of a pair must have
// equal numbers of tokens.
Result<Comparison> compare(const std::vector<Request>& real, const std::vector<Request>& ours, size_t skip);

std::string format_comparison(const Comparison& comparison, OutputFormat format);

// "ttft.mean=1.0": the metric, and the largest size of its difference in percent. "ttft.mean=+1.0" bounds an
// increase only, "tokens_per_s=-1.0" a decrease.
struct DifferenceLimit {
  std::string metric;
  double percent = 0;
  char direction = ' ';  // + or -: of the differences that count

  bool holds(double difference_percent) const;
  std::string text() const;  // "limit +1 %"
};
Result<DifferenceLimit> parse_limit(const std::string& text);

// Each limit bounds the size of one difference in percent: "ttft.mean=1.0". Returns a sentence per broken
// limit.
Result<std::vector<std::string>> broken_limits(const Comparison& comparison,
                                               const std::vector<std::string>& limits);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_OUTPUT_COMPARE_H_
