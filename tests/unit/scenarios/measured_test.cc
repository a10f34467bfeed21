// Readers of real servers' results: vLLM's and SGLang's benchmarks, AIPerf, vLLM's /metrics.

#include "scenarios/server_runs/measured.h"

#include <doctest/doctest.h>

using namespace kvtwin;

namespace {

const std::string kBench =
    R"({"model_id":"m","duration":4.0,"input_lens":[10,20,5],"output_lens":[3,1,0],"ttfts":[0.5,0.25,0.0],)"
    R"("itls":[[0.1,0.3],[],[]],"start_times":[100.0,101.0,102.0],"errors":["","","refused"]})";

std::string said(const Result<MeasuredRun>& run) { return run ? "" : run.error().text(); }

v1::RunResult result_of(MeasuredRun run) {
  const std::vector<RunFile> files = measured_files(std::move(run));
  v1::RunResult out;
  REQUIRE(out.ParseFromString(files[0].bytes));
  return out;
}

}  // namespace

TEST_CASE("measured: a serving benchmark's requests, their latencies and rates") {
  const Result<MeasuredRun> run = read_bench(kBench, "x.json", -1);
  REQUIRE_MESSAGE(run, said(run));
  REQUIRE(run->requests.size() == 3);
  CHECK(run->requests[0].begin_s == 0);
  CHECK(run->requests[1].begin_s == 1);
  CHECK(run->requests[0].end_s == doctest::Approx(0.9));
  CHECK_FALSE(run->requests[2].finished);
  const v1::RunResult result = result_of(*run);
  CHECK(result.backend() == "measured");
  CHECK(result.requests().finished() == 2);
  CHECK(result.requests().cancelled() == 1);
  CHECK(result.latencies().ttft().mean_ns() == doctest::Approx(375e6));
  CHECK(result.latencies().tpot().mean_ns() == doctest::Approx(200e6));  // (0.9 - 0.5) / 2
  CHECK(result.latencies().itl().count() == 2);
  CHECK(result.latencies().e2e().p99_ns() == doctest::Approx(900e6));
  CHECK(result.rates().requests_per_s() == doctest::Approx(0.5));
  CHECK(result.rates().output_tokens_per_s() == doctest::Approx(1));
  CHECK(result.notes_size() == 0);
  const std::vector<RunFile> files = measured_files(*run);
  CHECK(files[1].bytes.find("0,0,0,0,0,finished,10,3,,0,0,500000000,900000000\n") != std::string::npos);
  CHECK(files[2].bytes.find("\"output_toks\":3") != std::string::npos);
}

TEST_CASE("measured: requests of a trace have kvtwin run's ids, and reuse counts only where it is known") {
  MeasuredRun run;
  MeasuredRequest request{.session = "s", .node = 4, .prompt = 100, .output = 2, .reused = 64};
  request.first_s = 1, request.end_s = 2;
  run.requests = {request};
  const std::vector<RunFile> known = measured_files(run);
  CHECK(known[1].bytes.find("0,s,0,4,0,finished,100,2,64,0,0,") != std::string::npos);
  CHECK(known[2].bytes.find(R"("request_id":"s/4")") != std::string::npos);
  CHECK(result_of(run).reuse().first_admission_tokens() == 64);
  CHECK(result_of(run).reuse().admitted_prompt_tokens() == 100);
  request.reused.reset();
  run.requests.push_back(request);
  CHECK(measured_files(run)[1].bytes.find("1,s,0,4,0,finished,100,2,,0,0,") != std::string::npos);
  CHECK(result_of(run).reuse().admitted_prompt_tokens() == 0);
}

TEST_CASE("measured: SGLang writes one result per line and no start times") {
  const std::string line =
      R"({"backend":"sglang","duration":2,"input_lens":[7],"output_lens":[2],"ttfts":[0.5],"itls":[[0.5]]})";
  const std::string other =
      R"({"backend":"sglang","duration":3,"input_lens":[8],"output_lens":[2],"ttfts":[0.5],"itls":[[1.5]]})";
  const auto last = read_bench(line + "\n" + other + "\n", "x.jsonl", -1);
  REQUIRE_MESSAGE(last, said(last));
  CHECK(last->requests[0].prompt == 8);
  CHECK(result_of(*last).notes(0).find("no start times") != std::string::npos);
  CHECK(read_bench(line + "\n" + other, "x.jsonl", 0)->requests[0].prompt == 7);
  CHECK(said(read_bench(line, "x.jsonl", 1)) == "--run: there is no run 1; x.jsonl has 1, from 0");
}

TEST_CASE("measured: AIPerf's records, one with an error") {
  const std::string text =
      R"({"metadata":{"x_correlation_id":"s","request_start_ns":1759813207000000000,"request_end_ns":1759813208000000000},)"
      R"("metrics":{"input_sequence_length":{"value":550,"unit":"tokens"},"time_to_first_token":{"value":250.5,"unit":"ms"},)"
      R"("output_sequence_length":{"value":9,"unit":"tokens"}},"error":null})"
      "\n"
      R"({"metadata":{"x_correlation_id":"s","request_start_ns":1759813209000000000,"request_end_ns":1759813209500000000},)"
      R"("metrics":{"error_isl":{"value":550,"unit":"tokens"}},"error":{"code":499}})"
      "\n";
  CHECK(detect_measured(text, "x").value() == MeasuredFormat::kAiperf);
  const auto run = read_aiperf(text, "x.jsonl");
  REQUIRE_MESSAGE(run, said(run));
  CHECK(run->requests[0].first_s == doctest::Approx(0.2505));
  CHECK(run->requests[0].end_s == doctest::Approx(1));
  CHECK(run->requests[1].begin_s == doctest::Approx(2));
  CHECK_FALSE(run->requests[1].finished);
  const v1::RunResult result = result_of(*run);
  CHECK(result.requests().sessions() == 1);
  CHECK(result.latencies().tpot().mean_ns() == doctest::Approx(749.5e6 / 8));
}

TEST_CASE("measured: vLLM's histograms, between two scrapes") {
  const std::string before =
      "# TYPE vllm:time_to_first_token_seconds histogram\n"
      "vllm:time_to_first_token_seconds_bucket{le=\"0.1\",model_name=\"m\"} 2\n"
      "vllm:time_to_first_token_seconds_bucket{le=\"0.5\",model_name=\"m\"} 2\n"
      "vllm:time_to_first_token_seconds_bucket{le=\"+Inf\",model_name=\"m\"} 2\n"
      "vllm:time_to_first_token_seconds_sum{model_name=\"m\"} 0.1\n"
      "vllm:time_to_first_token_seconds_count{model_name=\"m\"} 2\n"
      "vllm:prompt_tokens_total{model_name=\"m\"} 100\n";
  const std::string after =
      "process_start_time_seconds 1.7e+09\n"
      "vllm:time_to_first_token_seconds_bucket{le=\"0.1\",model_name=\"m\"} 4\n"
      "vllm:time_to_first_token_seconds_bucket{le=\"0.5\",model_name=\"m\"} 10\n"
      "vllm:time_to_first_token_seconds_bucket{le=\"+Inf\",model_name=\"m\"} 12\n"
      "vllm:time_to_first_token_seconds_sum{model_name=\"m\"} 3.1\n"
      "vllm:time_to_first_token_seconds_count{model_name=\"m\"} 12\n"
      "vllm:request_success_total{finished_reason=\"stop\"} 6\n"
      "vllm:request_success_total{finished_reason=\"length\"} 4\n"
      "vllm:prompt_tokens_total{model_name=\"m\"} 1100\n";
  const auto run = read_prometheus(after, before, 10, "m.txt");
  REQUIRE_MESSAGE(run, said(run));
  const v1::RunResult result = result_of(*run);
  CHECK(result.latencies().ttft().count() == 10);
  CHECK(result.latencies().ttft().mean_ns() == doctest::Approx(0.3e9));
  // Two of ten up to 0.1, six from there to 0.5: the fifth is half of the way.
  CHECK(result.latencies().ttft().p50_ns() == doctest::Approx(0.3e9));
  CHECK(result.latencies().ttft().p99_ns() == doctest::Approx(0.5e9));  // beyond the last edge
  CHECK(result.requests().finished() == 10);
  CHECK(result.rates().prompt_tokens_per_s() == doctest::Approx(100));
  CHECK(said(read_prometheus(before, after, 0, "m.txt")).find("without a restart in between") !=
        std::string::npos);
  CHECK(result_of(*read_prometheus(after, "", 0, "m.txt")).rates().requests_per_s() == 0);
}

TEST_CASE("measured: a server's request log, from the clients' arrivals where it has them") {
  const std::string log =
      R"({"request_id":"a","input_toks":10,"output_toks":3,"queued_ts":5.5,"first_token_ts":6.0,"last_token_ts":7.0})"
      "\n"
      R"({"request_id":"b","input_toks":20,"output_toks":1,"queued_ts":5.0,"first_token_ts":5.25,"last_token_ts":5.25})"
      "\n";
  CHECK(*detect_measured(log, "x.jsonl") == MeasuredFormat::kRequests);
  const Result<MeasuredRun> run = read_request_log(log, "x.jsonl");
  REQUIRE_MESSAGE(run, said(run));
  const v1::RunResult result = result_of(*run);
  CHECK(result.requests().finished() == 2);
  CHECK(result.latencies().ttft().mean_ns() == doctest::Approx(375e6));
  CHECK(result.latencies().tpot().mean_ns() == doctest::Approx(500e6));
  CHECK(result.rates().output_tokens() == 4);
  CHECK_FALSE(read_request_log("", "x.jsonl").has_value());
  CHECK_FALSE(read_request_log(R"({"input_toks":1})", "x.jsonl").has_value());
}
