#include "scenarios/output/compare.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

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

TEST_CASE("compare: ids match in any order, and requests that only the run has are left out") {
  // A run in the order of sessions, a log in the order of sending, stopped before the last request.
  const std::vector<Request> run = {request("s/0", 0, 1, 2, 5), request("s/2", 4, 5, 6, 7),
                                    request("t/0", 1, 2, 3, 6), request("t/1", 8, 9, 9, 2)};
  const std::vector<Request> log = {request("s/0", 0, 1, 2, 5), request("t/0", 1, 3, 4, 6),
                                    request("s/2", 4, 5, 6, 7)};
  const Result<Comparison> found = compare(log, run, 0);
  REQUIRE(found);
  CHECK(found->matched_by == "id");
  CHECK(found->requests == 3);
  CHECK(found->not_in_log == 1);
  CHECK(format_comparison(*found, OutputFormat::kTable).find("1 request of the run is not in the log") !=
        std::string::npos);
  CHECK(row(*found, "ttft", "mean").real_ms == doctest::Approx(4000. / 3));
  CHECK(row(*found, "ttft", "mean").ours_ms == doctest::Approx(1000));
  std::vector<Request> other = log;
  other[2].output_tokens = 8;
  const Result<Comparison> wrong = compare(other, run, 0);
  REQUIRE(!wrong);
  CHECK(wrong.error().text().find("request s/2: has 10 + 8 tokens in the log and 10 + 7 in the run") == 0);
}

TEST_CASE("compare: latencies begin at the client's sending where both sides know it, else at queued_ts") {
  const std::string line =
      R"({{"request_id":"r","input_toks":3,"output_toks":2,{}"queued_ts":10,"first_token_ts":11,"last_token_ts":12}})";
  struct Row {
    const char *real, *ours;  // arrival_time
    bool from_arrival;
    double real_ms, ours_ms;
  };
  for (const Row& one : {Row{R"("arrival_time":9.5,)", R"("arrival_time":9,)", true, 1500, 2000},
                         Row{"", R"("arrival_time":9,)", false, 1000, 1000},
                         // Of another clock, as in vLLM's log.
                         Row{R"("arrival_time":1787267980.1,)", R"("arrival_time":9,)", false, 1000, 1000}}) {
    const auto real = parse_requests(fmt::format(fmt::runtime(line), one.real), "log");
    const auto ours = parse_requests(fmt::format(fmt::runtime(line), one.ours), "run");
    REQUIRE(real);
    REQUIRE(ours);
    const Result<Comparison> found = compare(*real, *ours, 0);
    REQUIRE(found);
    CHECK(found->from_arrival == one.from_arrival);
    CHECK(row(*found, "ttft", "mean").real_ms == doctest::Approx(one.real_ms));
    CHECK(row(*found, "ttft", "mean").ours_ms == doctest::Approx(one.ours_ms));
    CHECK(row(*found, "latency", "p99").ours_ms == doctest::Approx(one.ours_ms + 1000));
  }
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
