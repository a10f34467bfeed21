#include "scenarios/output/compare_runs.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace kvtwin {
namespace {

ComparedRun run_of(const char* name, const char* node, double latency_s) {
  ComparedRun out;
  out.name = name;
  out.result.set_decisions(node == std::string("h100") ? 1 : 2);
  out.result.set_scenario_text(std::string("hardware { node: \"") + node + "\" }\nseed: 42\n");
  out.result.mutable_rates()->set_requests_per_s(latency_s);
  // Latencies of 1, 2, 3 and 4 times the given one; both times are on the run's own clock.
  for (int i = 1; i <= 4; ++i)
    out.requests.push_back({"s/" + std::to_string(i), 100, 10, 7.0, 8.0, 7.0 + i * latency_s});
  return out;
}

const RunsComparison::Metric& metric_of(const RunsComparison& all, const std::string& name) {
  const auto found = std::find_if(all.metrics.begin(), all.metrics.end(),
                                  [&](const RunsComparison::Metric& one) { return one.name == name; });
  REQUIRE(found != all.metrics.end());
  return *found;
}

}  // namespace

TEST_CASE("compare runs: settings that differ, metrics of both, and the same requests") {
  const ComparedRun slow = run_of("a", "h100", 2.0);
  ComparedRun fast = run_of("b", "h200", 1.0);
  fast.requests[0].last_token_s = 7.0 + 2.0;          // as in the first run
  fast.requests[1].last_token_s = 7.0 + 2 * 2.0 + 1;  // slower
  const RunsComparison all = compare_runs(slow, fast);
  CHECK_FALSE(all.same_decisions);
  REQUIRE(all.settings.size() == 1);  // the seed is the same
  CHECK(all.settings[0].field == "hardware.node");
  CHECK(all.settings[0].first == "\"h100\"");
  CHECK(all.settings[0].second == "\"h200\"");
  CHECK(metric_of(all, "requests_per_s").difference_percent() == doctest::Approx(-50));
  REQUIRE(all.same.has_value());
  CHECK(all.same->requests == 4);
  CHECK(all.same->faster == 2);
  CHECK(all.same->slower == 1);
  CHECK(all.same->median_percent == doctest::Approx(-25));  // of -50, -50, 0 and +25
}

TEST_CASE("compare runs: requests that differ are not compared, and equal runs have no difference") {
  const ComparedRun one = run_of("a", "h100", 2.0);
  ComparedRun other = one;
  const RunsComparison equal = compare_runs(one, other);
  CHECK(equal.same_decisions);
  CHECK(equal.settings.empty());
  CHECK(equal.same->faster + equal.same->slower == 0);
  other.requests[2].output_tokens = 11;
  CHECK_FALSE(compare_runs(one, other).same.has_value());
  other = one;
  other.requests[2].id = "s/9";
  CHECK_FALSE(compare_runs(one, other).same.has_value());
}

TEST_CASE("compare runs: a limit bounds the size of a difference in percent") {
  const RunsComparison all = compare_runs(run_of("a", "h100", 2.0), run_of("b", "h200", 1.9));
  CHECK(broken_limits(all, {"requests_per_s=6"})->empty());
  const Result<std::vector<std::string>> broken = broken_limits(all, {"requests_per_s=4"});
  REQUIRE(broken);
  REQUIRE(broken->size() == 1);
  CHECK(broken->front() == "requests_per_s: 2 in a, 1.9 in b: -5.00 %, limit 4 %");
  // Differences in one direction: the second run has fewer requests per second.
  CHECK(broken_limits(all, {"requests_per_s=+1"})->empty());
  CHECK(broken_limits(all, {"requests_per_s=-6"})->empty());
  CHECK(broken_limits(all, {"requests_per_s=-4"})->at(0).find("limit -4 %") != std::string::npos);
  CHECK_FALSE(broken_limits(all, {"requests_per_s=+-4"}).has_value());
  CHECK(broken_limits(all, {"request_per_s=4"}).error().what == "no metric \"request_per_s\"");
}

}  // namespace kvtwin
