// The simulator's part of calibrate_server(): a run of a scenario, reduced to its requests.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "scenarios/app/compose.h"
#include "scenarios/app/compose_parts.h"
#include "scenarios/app/results.h"
#include "scenarios/calibrate/calibrate_server.h"

namespace kvtwin {

tl::expected<std::vector<Request>, Errors> simulated_requests(const Scenario& scenario,
                                                              const ServerTimes* times) {
  tl::expected<Composed, Errors> composed = compose(scenario);
  if (!composed) return tl::unexpected<Errors>(composed.error());
  if (times != nullptr) {
    composed->server.emplace().times = *times;
    Errors errors;
    composed->cost = make_cost(scenario, 0, &*composed, &errors);
    if (!errors.empty()) return tl::unexpected<Errors>(std::move(errors));
  }
  Metrics metrics(composed->facts);
  const std::vector<Observer*> observers = {&metrics};
  const Result<SimulatedEnd> end = simulate(scenario, &*composed, composed->client.get(), observers);
  if (!end) return tl::unexpected<Errors>(Errors{end.error()});
  Result<std::vector<Request>> requests = parse_requests(requests_jsonl(*composed, metrics), scenario.path);
  if (!requests) return tl::unexpected<Errors>(Errors{requests.error()});
  std::stable_sort(requests->begin(), requests->end(),
                   [](const Request& a, const Request& b) { return a.queued_s < b.queued_s; });
  return std::move(*requests);
}

std::string trace_of_log(const std::vector<Request>& log) {
  std::string out;
  for (const Request& one : log) {
    out += fmt::format(R"({{"timestamp": {:.6f}, "input_length": {}, "output_length": {}}})"
                       "\n",
                       1e3 * (one.queued_s - log.front().queued_s), one.input_tokens, one.output_tokens);
  }
  return out;
}

}  // namespace kvtwin
