#include "scenarios/output/limiting.h"

#include <fmt/format.h>
#include <google/protobuf/text_format.h>

#include <algorithm>

#include "engine/base/plural.h"
#include "traces/proto/scenario.pb.h"

namespace kvtwin {
namespace {

// Below, a cause is not worth a sentence.
constexpr double kFractionMin = 0.15;
// The GPU limits a run in which it works for most of the time.
constexpr double kBusyMin = 0.7;
// Peaks of pages and of running requests count as their limit from this fraction on.
constexpr double kFull = 0.98;

double largest(const v1::RunResult& r, const std::string& series) {
  double most = 0;
  for (const v1::TimeSeries& one : r.series()) {
    if (one.name() != series) continue;
    for (const double value : one.mean()) most = std::max(most, value);
  }
  return most;
}

v1::Scenario scenario_of(const v1::RunResult& r) {
  v1::Scenario scenario;
  if (!google::protobuf::TextFormat::ParseFromString(r.scenario_text(), &scenario)) scenario.Clear();
  return scenario;
}

double engines_of(const v1::Scenario& scenario) {
  uint32_t engines = scenario.engines().count();
  for (const v1::EngineKind& kind : scenario.engines().further()) engines += kind.count();
  return std::max(1u, engines);
}

bool memory_full(const v1::RunResult& r) {
  const v1::Pages& pages = r.pages();
  return r.requests().preemptions() > 0 || (pages.gpu() > 0 && static_cast<double>(pages.held_peak()) >=
                                                                   kFull * static_cast<double>(pages.gpu()));
}

bool request_limit_reached(const v1::RunResult& r, const v1::Scenario& scenario) {
  const double most = scenario.limits().requests_max() * engines_of(scenario);
  return most > 0 && largest(r, "requests_running") >= kFull * most;
}

Limiting of_queue(const v1::RunResult& r, const v1::Scenario& scenario, double percent) {
  if (memory_full(r))
    return {"kv_memory",
            fmt::format("KV memory: all GPU pages are in use, requests queue for {:.0f} % of their time",
                        percent)};
  if (request_limit_reached(r, scenario))
    return {
        "request_limit",
        fmt::format("the limit of running requests (limits.requests_max={}): requests queue for {:.0f} % of "
                    "their time while GPU pages are free",
                    scenario.limits().requests_max(), percent)};
  const bool prefill = r.time().prefill_s() > r.time().decode_s();
  return {prefill ? "prefill" : "decode",
          fmt::format("GPU time: requests queue for {:.0f} % of their time behind the {} of others", percent,
                      prefill ? "prefill" : "decode steps")};
}

}  // namespace

Limiting limiting(const v1::RunResult& r) {
  const v1::TimeBreakdown& time = r.time();
  if (time.latency_s() <= 0) return {"nothing", "nothing: no request finished"};
  if (r.requests().rejected() > 0 && r.requests().finished() < r.requests().rejected())
    return {"window", "the context window or the KV pages of an engine: most requests can never fit"};
  const v1::Scenario scenario = scenario_of(r);
  const auto percent = [&](double seconds) { return 100 * seconds / time.latency_s(); };
  const double queue = time.queue_s() / time.latency_s();
  if (time.recompute_s() / time.latency_s() >= kFractionMin && time.recompute_s() >= time.queue_s())
    return {"kv_memory",
            fmt::format("KV memory: preempted requests compute their tokens again for {:.0f} % of "
                        "the requests' time",
                        percent(time.recompute_s()))};
  if (time.transfer_s() / time.latency_s() >= kFractionMin && time.transfer_s() >= time.queue_s())
    return {"transfers", fmt::format("copies between memories: requests wait for them {:.0f} % of their time",
                                     percent(time.transfer_s()))};
  if (queue >= kFractionMin) return of_queue(r, scenario, 100 * queue);
  if (time.host_s() / time.latency_s() >= kFractionMin)
    return {"host",
            fmt::format("the host: GPUs wait for it {:.0f} % of the requests' time", percent(time.host_s()))};
  const bool prefill = time.prefill_s() > time.decode_s();
  const char* const most = prefill ? "prefill" : "decode steps";
  if (r.rates().busy() >= kBusyMin)
    return {prefill ? "prefill" : "decode",
            fmt::format("GPU time: busy {:.0f} % of the run, mostly with {}", 100 * r.rates().busy(), most)};
  return {"nothing", fmt::format("nothing: GPU busy {:.0f} %, requests queue for {:.1f} % of their time; "
                                 "latency is mostly {}",
                                 100 * r.rates().busy(), 100 * queue, most)};
}

}  // namespace kvtwin
