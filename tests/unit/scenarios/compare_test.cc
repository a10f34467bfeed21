#include "scenarios/output/compare.h"

#include <doctest/doctest.h>

namespace kvtwin {
namespace {

Request request(const char* id, double queued, double first, double last, uint64_t output) {
  return {id, 10, output, queued, first, last};
}

const ComparedRow& row(const Comparison& comparison, const char* metric, const char* statistic) {
  for (const ComparedRow& one : comparison.rows) {
    if (one.metric == metric && one.statistic == statistic) return one;
  }
  FAIL("no such row");
  return comparison.rows.front();
}

}  // namespace

TEST_CASE("compare: TTFT counts from queued, TPOT excludes the first token, percentiles interpolate") {
  const std::vector<Request> real = {request("a", 0, 1, 2, 11), request("b", 0, 2, 4, 11)};
  const std::vector<Request> ours = {request("a", 5, 6.5, 7.5, 11), request("b", 5, 7.5, 10.5, 11)};
  const Result<Comparison> found = compare(real, ours, 0);
  REQUIRE(found);
  CHECK(found->matched_by == "id");
  CHECK(row(*found, "ttft", "mean").real_ms == doctest::Approx(1500));
  CHECK(row(*found, "ttft", "mean").ours_ms == doctest::Approx(2000));
  CHECK(row(*found, "ttft", "mean").difference_percent() == doctest::Approx(100. / 3));
  CHECK(row(*found, "tpot", "mean").real_ms == doctest::Approx(150));
  CHECK(row(*found, "ttft", "p90").real_ms == doctest::Approx(1900));
  CHECK(row(*found, "latency", "p99").ours_ms == doctest::Approx(2500 + 3000 * 0.99));
}

TEST_CASE(
    "compare: requests match by id in any order, otherwise by order; the first requests can be skipped") {
  const std::vector<Request> real = {request("a", 0, 1, 2, 5), request("b", 0, 2, 3, 6)};
  CHECK(compare(real, {request("b", 0, 2, 3, 6), request("a", 0, 1, 2, 5)}, 0)->matched_by == "id");
  CHECK(compare(real, {request("x", 0, 1, 2, 5), request("y", 0, 2, 3, 6)}, 0)->matched_by == "order");
  const Result<Comparison> rest = compare(real, real, 1);
  REQUIRE(rest);
  CHECK(rest->requests == 1);
  CHECK(row(*rest, "ttft", "mean").real_ms == doctest::Approx(2000));
}

TEST_CASE("compare: different requests, different counts and too few requests are errors") {
  const std::vector<Request> real = {request("a", 0, 1, 2, 5), request("b", 0, 2, 3, 6)};
  CHECK(!compare(real, {real[0]}, 0));
  CHECK(!compare(real, {request("x", 0, 1, 2, 5), request("y", 0, 2, 3, 7)}, 0));
  CHECK(!compare(real, real, 2));
}

TEST_CASE("compare: request logs are checked line by line") {
  const char good[] =
      R"({"request_id": "r", "input_toks": 3, "output_toks": 2, "queued_ts": 1, "first_token_ts": 2.5, "last_token_ts": 3})";
  const Result<std::vector<Request>> parsed = parse_requests(std::string(good) + "\n\n" + good + "\n", "log");
  REQUIRE(parsed);
  CHECK(parsed->size() == 2);
  CHECK((*parsed)[1].first_token_s == 2.5);
  CHECK(!parse_requests("", "log"));
  CHECK(!parse_requests("[1]", "log"));
  CHECK(!parse_requests("{\"input_toks\": \xff", "log"));
  CHECK(parse_requests(std::string(good) + "\n{}", "log").error().where == "log:2");
  CHECK(!parse_requests(
      R"({"input_toks": -3, "output_toks": 2, "queued_ts": 1, "first_token_ts": 2.5, "last_token_ts": 3})",
      "log"));
  CHECK(!parse_requests(
      R"({"input_toks": 3, "output_toks": 2, "queued_ts": 4, "first_token_ts": 2.5, "last_token_ts": 3})",
      "log"));
}

}  // namespace kvtwin
