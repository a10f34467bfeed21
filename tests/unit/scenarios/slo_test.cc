// Parsing of SLOs, and their verdict on a run.

#include "scenarios/plan/slo.h"

#include <doctest/doctest.h>

#include <map>

#include "scenarios/plan/plan.h"

using namespace kvtwin;

namespace {

Slo slo(const char* text) {
  const Result<Slo> parsed = parse_slo(text);
  REQUIRE_MESSAGE(parsed, parsed.error().text());
  return *parsed;
}

}  // namespace

TEST_CASE("SLO: figures, units and directions") {
  CHECK(slo("ttft_p99<2s").figure == "ttft_p99_ms");
  CHECK(slo("ttft_p99<2s").limit == 2000);
  CHECK(slo("tpot_p95<=40ms").limit == 40);
  CHECK(slo("itl_mean<500us").limit == doctest::Approx(0.5));
  CHECK(slo("session_p90<10min").figure == "session_makespan_p90_ms");
  CHECK(slo("session_p90<10min").limit == 600'000);
  CHECK(slo("session_served_p50<1.5h").limit == doctest::Approx(5.4e6));
  CHECK(slo("ttft_from_queued_p50<1s").figure == "ttft_from_queued_p50_ms");
  CHECK(slo("goodput>=95%").kind == Slo::Kind::kGoodput);
  CHECK(slo("goodput>0.95").limit == doctest::Approx(0.95));
  CHECK(slo("ttft<2s").kind == Slo::Kind::kOfEachRequest);
  CHECK(!slo("output_tokens_per_s>1000").below);
  CHECK(slo("TTFT p95 < 5 s").figure == "ttft_p95_ms");
  CHECK(slo("TTFT p95 < 5 s").limit == 5000);
  CHECK(slo(" goodput >= 95 %").text == "goodput>=95%");
}

TEST_CASE("SLO: a run compared with its SLOs") {
  const std::vector<Slo> slos = {slo("ttft_p99<2s"), slo("requests_per_s>4"), slo("e2e_p50<1s")};
  const std::map<std::string, double> figures = {{"ttft_p99_ms", 1500}, {"requests_per_s", 5}};
  std::vector<SloValue> values = judge(slos, figures, "");
  CHECK(values[0].kept);
  CHECK(values[0].use == doctest::Approx(0.75));
  CHECK(values[1].kept);
  CHECK(values[1].use == doctest::Approx(0.8));
  CHECK(!values[2].known);
  CHECK(!values[2].kept);
  values = judge(slos, figures, "", 1.5);  // steps that take 1.5 times as long
  CHECK(!values[0].kept);
  CHECK(values[1].kept);
}

TEST_CASE("SLO: goodput counts requests that meet every condition, and unfinished ones as missed") {
  const std::string requests =
      "request,session,end,output_tokens,ready_ns,first_token_ns,finished_ns\n"
      "0,a,finished,11,0,1000000000,1500000000\n"        // ttft 1 s, tpot 50 ms
      "1,\"b,c\",finished,11,0,1000000000,3000000000\n"  // tpot 200 ms
      "2,a,finished,1,0,3000000000,3000000000\n"         // ttft 3 s
      "3,a,rejected,5,0,,0\n"
      "4,a,cancelled,5,0,,0\n";  // not counted: the client's decision
  const auto fraction = [&](const std::vector<std::string>& texts) {
    return judge(*parse_slos(texts), {}, requests).front().value;
  };
  CHECK(fraction({"goodput>=50%", "ttft<2s"}) == doctest::Approx(0.5));
  CHECK(fraction({"goodput>=50%", "ttft<2s", "tpot<100ms"}) == doctest::Approx(0.25));
  CHECK(fraction({"goodput>=50%", "tpot<1s", "e2e<1h"}) == doctest::Approx(0.75));
  const std::vector<SloValue> values = judge(*parse_slos({"goodput>=50%", "ttft<2s"}), {}, requests);
  CHECK(values[0].kept);
  CHECK(values[0].use == doctest::Approx(1));
}

TEST_CASE("plan: loads and losses are parsed as written") {
  CHECK(parse_load("replay.population=1..500")->whole);
  CHECK(parse_load("replay.population=1..500")->high == 500);
  CHECK(!parse_load("replay.sessions_per_s=0.1..10")->whole);
  CHECK(!parse_load("replay.population"));
  CHECK(!parse_load("replay.population=500..1"));
  CHECK(!parse_load("replay.population=0..5"));
  CHECK(parse_loss("policies.precision=int4:0.4")->percent == doctest::Approx(0.4));
  CHECK(parse_loss("policies.precision=int4:0.4")->value == "int4");
  CHECK(!parse_loss("policies.precision=int4"));
}

TEST_CASE("plan: the cost of formats comes from an evaluation, over tasks that both answered") {
  const std::string table =
      "policy,budget,task,right,accuracy\n"
      "full,0,keys,99,0.99\nfull,0,lists,90,0.9\n"
      "int4,0,keys,97,0.97\nint4,0,lists,88,0.88\nint4,0,alone,1,0.01\n"
      "kivi,0,keys,49,0.49\nsnapkv,64,keys,50,0.5\n";
  const auto losses = read_losses(table, "quality.csv");
  REQUIRE(losses);
  std::map<std::string, double> by;
  for (const KnownLoss& loss : *losses) {
    CHECK(loss.field == "policies.precision");
    by[loss.value] = loss.percent;
  }
  CHECK(by.size() == 3);  // sets that drop KV entries are excluded
  CHECK(by["bf16"] == doctest::Approx(0));
  CHECK(by["int4"] == doctest::Approx(2));
  CHECK(by["kivi_int2"] == doctest::Approx(50));
  CHECK(!read_losses("policy,task\n", "quality.csv"));
  CHECK(!read_losses("policy,budget,task,accuracy\nfull,0,keys,0.9\n", "quality.csv"));
  CHECK(!read_losses("policy,budget,task,accuracy\nfull,0,keys,1.9\nint4,0,keys,1\n", "quality.csv"));
}

TEST_CASE("SLO: conditions on each request and a goodput go together, and there is one goodput") {
  CHECK(!parse_slos({}));
  CHECK(!parse_slos({"goodput>=95%"}));
  CHECK(!parse_slos({"ttft<2s"}));
  CHECK(!parse_slos({"ttft<2s", "goodput>=95%", "goodput>=90%"}));
  CHECK(parse_slos({"ttft<2s", "goodput>=95%", "tpot_p99<1s"}));
}
