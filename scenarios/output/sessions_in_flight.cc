#include "scenarios/output/sessions_in_flight.h"

#include <fmt/format.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cmath>

#include "traces/proto/scenario.pb.h"

namespace kvtwin {

double sessions_in_flight(const v1::RunResult& r) {
  const v1::Distribution& each = r.latencies().session_makespan();
  const auto elapsed = static_cast<double>(r.rates().elapsed_ns());
  return elapsed > 0 ? static_cast<double>(each.count()) * each.mean_ns() / elapsed : 0;
}

std::string in_flight_note(double mean, double population, double sessions, double replicas) {
  if (mean >= kInFlightEnough * population || mean <= 0) return "";
  const std::string load = fmt::format("on average {:.{}f} of {:.0f} sessions were in flight", mean,
                                       mean < 10 ? 1 : 0, population);
  // The end, in which the last sessions run, is as long with more sessions: k times as many of them give the
  // fraction k f / (k f + 1 - f) of the population.
  const double f = mean / population, times = kInFlightEnough / (1 - kInFlightEnough) * (1 - f) / f;
  return fmt::format(
      "{}, because the trace has only {:.0f} and the run lasts until the longest ends: prices and throughput "
      "are of that load; --set=replay.replicas={:.0f} would keep about {:.0f} % in flight, and "
      "--set=replay.think_cap_s=S shortens the end",
      load, sessions, std::ceil(times * std::max(replicas, 1.0)), 100 * kInFlightEnough);
}

std::string in_flight_note(const v1::RunResult& r) {
  v1::Scenario scenario;
  if (r.scenario_text().empty() ||
      !google::protobuf::TextFormat::ParseFromString(r.scenario_text(), &scenario) ||
      scenario.replay().arrivals() != "fixed_population")
    return "";
  return in_flight_note(sessions_in_flight(r), scenario.replay().population(),
                        static_cast<double>(r.requests().sessions()), scenario.replay().replicas());
}

}  // namespace kvtwin
