#include "scenarios/output/limiting.h"

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "scenarios/output/sessions_in_flight.h"

namespace kvtwin {
namespace {

struct Row {
  const char* what;
  const char* sentence;  // a part of it
  std::function<void(v1::RunResult*)> change;
};

void add_running(v1::RunResult* r, double most) {
  v1::TimeSeries& series = *r->add_series();
  series.set_name("requests_running");
  series.add_mean(1);
  series.add_mean(most);
}

std::vector<Row> rows() {
  return {
      {"nothing", "busy 20 %", [](v1::RunResult*) {}},
      {"nothing", "no request finished", [](v1::RunResult* r) { r->mutable_time()->set_latency_s(0); }},
      {"decode", "busy 90 % of the run, mostly with decode",
       [](v1::RunResult* r) { r->mutable_rates()->set_busy(0.9); }},
      {"prefill", "mostly with prefill",
       [](v1::RunResult* r) {
         r->mutable_rates()->set_busy(0.9);
         r->mutable_time()->set_prefill_s(99);
       }},
      {"decode", "queue for 44 % of their time behind the decode steps",
       [](v1::RunResult* r) { r->mutable_time()->set_queue_s(44); }},
      {"prefill", "behind the prefill of others",
       [](v1::RunResult* r) {
         r->mutable_time()->set_queue_s(44);
         r->mutable_time()->set_prefill_s(99);
       }},
      {"kv_memory", "all GPU pages are in use",
       [](v1::RunResult* r) {
         r->mutable_time()->set_queue_s(44);
         r->mutable_pages()->set_held_peak(1000);
       }},
      {"kv_memory", "all GPU pages are in use",
       [](v1::RunResult* r) {
         r->mutable_time()->set_queue_s(44);
         r->mutable_requests()->set_preemptions(1);
       }},
      {"request_limit", "limits.requests_max=8",
       [](v1::RunResult* r) {
         r->mutable_time()->set_queue_s(44);
         add_running(r, 16);
       }},
      {"decode", "GPU time",
       [](v1::RunResult* r) {
         r->mutable_time()->set_queue_s(44);
         add_running(r, 15);
       }},
      {"kv_memory", "compute their tokens again for 30 %",
       [](v1::RunResult* r) { r->mutable_time()->set_recompute_s(30); }},
      {"transfers", "wait for them 20 %", [](v1::RunResult* r) { r->mutable_time()->set_transfer_s(20); }},
      {"host", "GPUs wait for it 20 %", [](v1::RunResult* r) { r->mutable_time()->set_host_s(20); }},
      {"window", "most requests can never fit",
       [](v1::RunResult* r) {
         r->mutable_requests()->set_rejected(9);
         r->mutable_requests()->set_finished(3);
       }},
  };
}

}  // namespace

TEST_CASE("limiting: the largest avoidable part of the requests' time decides") {
  for (const Row& row : rows()) {
    CAPTURE(row.sentence);
    v1::RunResult result;
    result.set_scenario_text("engines { count: 2 } limits { requests_max: 8 }");
    result.mutable_time()->set_latency_s(100);
    result.mutable_time()->set_decode_s(50);
    result.mutable_time()->set_prefill_s(10);
    result.mutable_rates()->set_busy(0.2);
    result.mutable_pages()->set_gpu(1000);
    result.mutable_pages()->set_held_peak(500);
    row.change(&result);
    const Limiting out = limiting(result);
    CHECK(std::string(out.what) == row.what);
    CHECK_MESSAGE(out.sentence.find(row.sentence) != std::string::npos, out.sentence);
  }
}

TEST_CASE("sessions in flight: a mean over time, noted below 80 % of the population") {
  v1::RunResult r;
  r.mutable_latencies()->mutable_session_makespan()->set_count(216);
  r.mutable_latencies()->mutable_session_makespan()->set_mean_ns(100e9);
  r.mutable_requests()->set_sessions(216);
  r.mutable_rates()->set_elapsed_ns(348'000'000'000);
  CHECK(sessions_in_flight(r) == doctest::Approx(216 * 100.0 / 348));
  CHECK(in_flight_note(r).empty());  // no fixed population
  r.set_scenario_text("replay { arrivals: \"fixed_population\" population: 200 }");
  CHECK(in_flight_note(r).starts_with(
      "on average 62 of 200 sessions were in flight, because the trace has only 216 and"));
  CHECK(in_flight_note(r).find("--set=replay.replicas=9 would keep about 80 %") != std::string::npos);
  r.set_scenario_text("replay { arrivals: \"fixed_population\" population: 70 }");
  CHECK(in_flight_note(r).empty());
}

}  // namespace kvtwin
