#include "scenarios/validate/validation.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "scenarios/validate/run_validation.h"

namespace kvtwin {
namespace {

v1::RunResult result(double tokens_per_s, double tpot_ns, uint64_t preemptions, uint64_t peak) {
  v1::RunResult out;
  out.mutable_rates()->set_output_tokens_per_s(tokens_per_s);
  out.mutable_latencies()->mutable_tpot()->set_mean_ns(tpot_ns);
  out.mutable_requests()->set_preemptions(preemptions);
  out.mutable_pages()->set_gpu(1000);
  out.mutable_pages()->set_held_peak(peak);
  return out;
}

std::vector<Recording> recordings(const std::vector<v1::RunResult>& results) {
  std::vector<Recording> out;
  for (const v1::RunResult& one : results)
    out.push_back({std::to_string(out.size() + 1), {}, one, {}, 40 + 5 * out.size()});
  return out;
}

Recording simulated(const v1::RunResult& result, uint64_t evicted = 0) {
  return {"", {}, result, {}, evicted};
}

const ComparedFigure& figure(const std::vector<ComparedFigure>& all, const std::string& name) {
  for (const ComparedFigure& one : all) {
    if (one.name == name) return one;
  }
  FAIL("no figure " << name);
  return all.front();
}

Validation validation_of(double median) {
  ScenarioValidation one;
  one.name = "one";
  one.steps = {100, median, 2 * median, -median};
  judge({}, &one);
  return {"profile", {one}, {}, one.steps, {}};
}

}  // namespace

TEST_CASE("validation: error sizes have nearest-rank percentiles, and their mean has a sign") {
  CHECK(statistics_of({}).count == 0);
  std::vector<double> errors;
  for (int i = 1; i <= 20; ++i) errors.push_back(i % 2 == 0 ? 0.01 * i : -0.01 * i);
  const ErrorStatistics s = statistics_of(errors);
  CHECK(s.count == 20);
  CHECK(s.median == doctest::Approx(10));
  CHECK(s.p95 == doctest::Approx(19));
  CHECK(s.mean == doctest::Approx(0.5));
}

TEST_CASE("validation: exposed time is the difference to the same steps with all pages present") {
  std::vector<ScenarioValidation> all(4);
  const char* const names[] = {"freekv_miss_0", "freekv_miss_20", "quest", "arkvale_miss_20"};
  for (size_t i = 0; i < all.size(); ++i) all[i].name = names[i];
  all[0].simulated_ms = 1000, all[0].real_ms = {1010, 990};
  all[1].simulated_ms = 1108, all[1].real_ms = {1095, 1105};
  all[2].simulated_ms = 900, all[2].real_ms = {900};
  all[3].simulated_ms = 900, all[3].real_ms = {900};  // its twin without misses was not run
  add_exposed_transfers(&all);
  for (const size_t none : {0, 2, 3}) CHECK(all[none].figures.empty());
  REQUIRE(all[1].figures.size() == 1);
  const ComparedFigure& exposed = all[1].figures[0];
  CHECK(exposed.name == "exposed transfers");
  CHECK(exposed.simulated == doctest::Approx(108));
  CHECK(exposed.real == doctest::Approx(100));
  CHECK(exposed.real_min == doctest::Approx(95));
  CHECK(exposed.difference == doctest::Approx(8));
  CHECK(exposed.verdict == Verdict::kWithin);
}

TEST_CASE("validation: a figure is within its limit, within the repeats, or outside") {
  const auto real =
      recordings({result(100, 5e6, 10, 500), result(102, 5e6, 20, 500), result(98, 5e6, 12, 500)});
  const auto all = compare_closed_loop(simulated(result(104, 5.1e6, 18, 530), 50), real);
  const ComparedFigure& throughput = figure(all, "throughput");
  CHECK(throughput.real == doctest::Approx(100));
  CHECK(throughput.real_min == 98);
  CHECK(throughput.real_max == 102);
  CHECK(throughput.difference == doctest::Approx(4));
  CHECK(throughput.verdict == Verdict::kOutside);
  CHECK(figure(all, "tpot mean").verdict == Verdict::kWithin);
  CHECK(figure(all, "preemptions").verdict == Verdict::kSpread);
  CHECK(figure(all, "evictions").real == 45);
  CHECK(figure(all, "evictions").verdict == Verdict::kSpread);        // 50 is the largest of 40, 45, 50
  CHECK(figure(all, "peak pages").difference == doctest::Approx(3));  // percentage points, not percent
  CHECK(figure(all, "peak pages").verdict == Verdict::kOutside);
  // A figure that is zero on both sides is omitted; one that is zero on one side is outside.
  for (const ComparedFigure& one : all) CHECK(one.name != "bytes to the gpu");
  const auto never =
      compare_closed_loop(simulated(result(100, 5e6, 3, 500)), recordings({result(100, 5e6, 0, 500)}));
  CHECK(figure(never, "preemptions").verdict == Verdict::kOutside);
}

TEST_CASE("validation: a known deviation is listed and does not count") {
  ScenarioValidation one;
  one.name = "one";
  one.steps = {10, 4, 5, 4};
  judge({{"other", "step time, median error", "x", ""}}, &one);
  CHECK(!one.good());
  ScenarioValidation known;
  known.name = "one", known.steps = one.steps;
  judge({{"*", "step time, median error", "a reason", ""}}, &known);
  CHECK(known.good());
  CHECK(figure(known.figures, "step time, median error").verdict == Verdict::kKnown);
  CHECK(validation_table({"p", {known}, {}, known.steps, {}}).find("a reason") != std::string::npos);
  known.replayed.push_back({"1", false, 10, 1, "step 3 differs"});
  CHECK(!known.good());
  CHECK(validation_table({"p", {known}, {}, known.steps, {}}).find("step 3 differs") != std::string::npos);
}

TEST_CASE("validation: a figure may exceed its baseline by at most a tenth") {
  const std::string before = validation_json(validation_of(2));
  CHECK(worse_than(validation_of(2), before, "b")->empty());
  CHECK(worse_than(validation_of(1), before, "b")->empty());
  CHECK(worse_than(validation_of(2.2), before, "b")->empty());
  const auto worse = worse_than(validation_of(2.4), before, "b");
  REQUIRE(worse);
  REQUIRE(worse->size() == 2);  // the median and the percentile
  CHECK(worse->front() == "one, step time, median error: error 2.40, baseline 2.00");
  CHECK(!worse_than({}, before, "b"));
  CHECK(worse_than({}, before, "b", true)->empty());  // the figures present on both sides
  CHECK(worse_than(validation_of(2.4), before, "b", true)->size() == 2);
  const auto problem = worse_than({}, "{", "file");
  REQUIRE(!problem);
  CHECK(problem.error().text().starts_with("file: is no validation.json"));
}

TEST_CASE("validation: known deviations are read, and must give a reason") {
  const auto read = parse_known_deviations(
      "deviation { scenario: \"*\" figure: \"f\" because: \"of this\" until: \"that\" }", "x");
  REQUIRE(read);
  CHECK(read->at(0).because == "of this");
  const auto problem = parse_known_deviations("deviation { scenario: \"*\" figure: \"f\" }", "x");
  REQUIRE(!problem);
  CHECK(problem.error().text().find("lacks a name or a reason") != std::string::npos);
}

}  // namespace kvtwin
