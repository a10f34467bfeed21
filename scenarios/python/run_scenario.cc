#include "scenarios/python/run_scenario.h"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <utility>

#include "engine/base/check.h"
#include "scenarios/app/compose.h"
#include "scenarios/app/compose_values.h"
#include "scenarios/app/results.h"
#include "scenarios/load/inputs.h"
#include "scenarios/load/unread_fields.h"

namespace kvtwin {
namespace {

tl::unexpected<Errors> failure(Error error) { return tl::unexpected<Errors>(Errors{std::move(error)}); }

std::vector<RunFile> observed_files(const Timeline* timeline, const EngineBackend* values) {
  std::vector<RunFile> files;
  if (std::string operations = values != nullptr ? values->operations_csv() : ""; !operations.empty())
    files.push_back({"operations.csv", std::move(operations)});
  if (timeline != nullptr) {
    files.push_back({"timeline.json", timeline->json()});
    files.push_back({"timeline.perfetto-trace", timeline->perfetto()});
  }
  return files;
}

tl::expected<FinishedRun, Errors> run_composed(const Scenario& scenario, uint64_t inputs,
                                               const std::optional<TimelineWindow>& window,
                                               Composed* composed) {
  Metrics metrics(composed->facts);
  std::vector<Observer*> observers = {&metrics};
  const Result<std::unique_ptr<EngineBackend>> made =
      make_engine_backend(scenario, *composed, window.has_value());
  if (!made) return failure(made.error());
  EngineBackend* const values = made->get();
  Client* client = composed->client.get();
  if (values != nullptr) client = values->watch(client);
  std::unique_ptr<Timeline> timeline;
  if (window) {
    timeline = std::make_unique<Timeline>(*window, composed->options.engines.size(),
                                          values != nullptr ? values->operations() : OperationsOfStep{});
    observers.push_back(timeline.get());
  }
  const Result<SimulatedEnd> end = values != nullptr ? values->run(scenario, composed, client, observers)
                                                     : simulate(scenario, composed, client, observers);
  if (!end) return failure(end.error());
  FinishedRun run;
  run.result = make_result(scenario, *composed, metrics, *end, inputs);
  run.files = result_files(run.result, *composed, metrics, observed_files(timeline.get(), values));
  return run;
}

}  // namespace

const std::string& FinishedRun::file(std::string_view name) const {
  static const std::string none;
  for (const RunFile& one : files) {
    if (one.name == name) return one.bytes;
  }
  return none;
}

tl::expected<FinishedRun, Errors> run_in_process(const RunRequest& request) {
  const auto began = std::chrono::steady_clock::now();
  std::optional<TimelineWindow> window;
  if (!request.timeline.empty()) {
    const Result<TimelineWindow> parsed = parse_window(request.timeline);
    if (!parsed) return failure(parsed.error());
    window = *parsed;
  }
  const tl::expected<Scenario, Errors> scenario =
      request.text ? parse_scenario(*request.text, request.scenario, request.sets)
                   : load_scenario(request.scenario, request.sets);
  if (!scenario) return tl::unexpected<Errors>(scenario.error());
  if (const Result<void> ok = check_backend(*scenario, request.scenario); !ok) return failure(ok.error());
  if (request.computes && scenario->values.backend() == "sim")
    return failure({"scorer", "is not called by backend sim, which computes no values", "backend=\"cpu\""});
  const Result<uint64_t> inputs = inputs_fingerprint(*scenario);
  if (!inputs) return failure(inputs.error());
  tl::expected<Composed, Errors> composed = compose(*scenario);
  if (!composed) return tl::unexpected<Errors>(composed.error());
  if (!request.allow_unread) {
    if (Errors unread = unread_sets(scenario->values, composed->client->mode(), request.sets);
        !unread.empty())
      return tl::unexpected<Errors>(std::move(unread));
  }
  set_check_context(fmt::format("kvtwin.run of {}", request.scenario));
  tl::expected<FinishedRun, Errors> run = run_composed(*scenario, *inputs, window, &*composed);
  if (run) run->wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return run;
}

}  // namespace kvtwin
