#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/plural.h"
#include "engine/methods/traits.h"
#include "engine/metrics/prefix_bound.h"
#include "engine/recorder/recorder.h"
#include "scenarios/app/compose.h"
#include "scenarios/app/compose_values.h"
#include "scenarios/app/results.h"
#include "scenarios/cli/cli.h"
#include "scenarios/cli/progress.h"
#include "scenarios/load/inputs.h"
#include "scenarios/load/unread_fields.h"
#include "scenarios/output/timeline.h"

namespace kvtwin {
namespace {

struct RunArguments {
  std::string scenario, out, format = "table", timeline, backend, clock;
  std::optional<std::string> seed;
  std::vector<std::string> sets;
  bool record = false, no_write = false, quiet = false, prefix_bound = false, allow_unread = false,
       force = false;
};

std::string repeat_command(const RunArguments& arguments, const Scenario& scenario) {
  std::string text = "kvtwin run " + shell_word(arguments.scenario);
  if (!arguments.backend.empty()) text += " --backend=" + arguments.backend;
  if (!arguments.clock.empty()) text += " --clock=" + arguments.clock;
  if (arguments.allow_unread) text += " --allow-unread";
  for (const std::string& set : arguments.sets) {
    if (set.rfind("seed=", 0) != 0) text += " " + shell_word("--set=" + set);
  }
  return text + fmt::format(" --seed={}", scenario.values.seed());
}

Errors check_sets(const RunArguments& arguments, const Scenario& scenario, const Composed& composed) {
  if (arguments.allow_unread) return {};
  return unread_sets(scenario.values, composed.client->mode(), arguments.sets);
}

// The bound is defined for one tier of whole pages.
Result<void> check_bound(const RunArguments& arguments, const Composed& composed) {
  if (!arguments.prefix_bound) return {};
  for (const CoreConfig& config : composed.options.engines) {
    const char* field = config.pages_host > 0                  ? "memory.host_bytes=0"
                        : composed.options.prefill_engines > 0 ? "engines.prefill=0"
                        : layout_traits(config.policies.layout).slot_retention != SlotRetention::kAll
                            ? "policies.layout=paged"
                        : config.pages_int2 > 0 ? "policies.precision=bf16"
                        : !config.prefix_cache  ? "limits.prefix_cache=true"
                                                : nullptr;
    if (field == nullptr) continue;
    return make_error(
        "--prefix-bound",
        "the bound needs one prefix cache of whole pages on the GPU, which this run does not have",
        fmt::format("--set={}, or run without it", field));
  }
  return {};
}

// Optional observers of the run, in addition to the metrics.
struct Extras {
  std::unique_ptr<Recorder> recorder;
  std::unique_ptr<OutcomeLog> outcomes;
  std::unique_ptr<Timeline> timeline;
  std::unique_ptr<PrefixBound> bound;
  std::string operations_csv;  // from a backend that times operations
};

std::vector<RunFile> observed_files(const Extras& extras, const RunEnd& end) {
  std::vector<RunFile> files;
  if (extras.recorder) files.push_back({"log.binpb", extras.recorder->finish(end)});
  if (!extras.operations_csv.empty()) files.push_back({"operations.csv", extras.operations_csv});
  if (extras.outcomes && extras.outcomes->used()) {
    files.push_back({"outcomes.binpb", extras.outcomes->finish()});
  }
  if (extras.timeline) {
    files.push_back({"timeline.json", extras.timeline->json()});
    files.push_back({"timeline.perfetto-trace", extras.timeline->perfetto()});
  }
  return files;
}

// Options that are a short form of a field, as sets.
std::vector<std::string> all_sets(const RunArguments& arguments) {
  std::vector<std::string> sets = arguments.sets;
  if (arguments.seed) sets.push_back(fmt::format("seed={}", *arguments.seed));
  if (!arguments.backend.empty()) sets.push_back("backend=" + arguments.backend);
  if (!arguments.clock.empty()) sets.push_back("clock=" + arguments.clock);
  return sets;
}

std::optional<double> tagging_ns(const Composed& composed) {
  if (!composed.tagger) return std::nullopt;
  return composed.tagger->cost().ns_per_token();
}

// Creates the requested observers and appends them. Returns the Client to run with.
Client* attach(const RunArguments& arguments, const Scenario& scenario,
               const std::optional<TimelineWindow>& window, EngineBackend* values, Client* client,
               Composed* composed, Extras* extras, std::vector<Observer*>* observers) {
  if (arguments.record) {
    const RecordedAbout about{scenario.values.name(), scenario.values.seed()};
    extras->recorder = std::make_unique<Recorder>(composed->options, about);
    client = extras->recorder->watch(client);
    observers->push_back(extras->recorder.get());
    extras->outcomes = std::make_unique<OutcomeLog>(static_cast<uint32_t>(composed->options.engines.size()));
    composed->outcome_log = extras->outcomes.get();
  }
  if (arguments.prefix_bound) {
    extras->bound = std::make_unique<PrefixBound>(composed->options.engines);
    observers->push_back(extras->bound.get());
  }
  if (window) {
    extras->timeline =
        std::make_unique<Timeline>(*window, composed->options.engines.size(),
                                   values != nullptr ? values->operations() : OperationsOfStep{});
    observers->push_back(extras->timeline.get());
  }
  return client;
}

int run_scenario(const RunArguments& arguments) {
  const Result<OutputFormat> format = parse_format(arguments.format);
  if (!format) return complain(format.error());
  if (arguments.seed && !is_whole_number(*arguments.seed))
    return complain(
        Error{"--seed=" + *arguments.seed, "is not a whole number from 0 to 18446744073709551615", {}});
  std::optional<TimelineWindow> window;
  if (!arguments.timeline.empty()) {
    const Result<TimelineWindow> parsed = parse_window(arguments.timeline);
    if (!parsed) return complain(parsed.error());
    window = *parsed;
  }
  const tl::expected<Scenario, Errors> scenario = load_scenario(arguments.scenario, all_sets(arguments));
  if (!scenario) return complain(scenario.error());
  if (const Result<void> ok = check_backend(*scenario, arguments.scenario); !ok)
    return complain(ok.error(), kExitNoBackend);
  const Result<uint64_t> inputs = inputs_fingerprint(*scenario);
  if (!inputs) return complain(inputs.error());
  const std::string out = arguments.out.empty() ? fmt::format("out/run-{:016x}", *inputs) : arguments.out;
  if (!arguments.no_write) {
    if (const Result<void> ok = check_replaceable(out, *inputs, arguments.force); !ok)
      return complain(ok.error());
  }
  Progress progress(arguments.quiet);
  tl::expected<Composed, Errors> composed = compose(*scenario, [&] { progress.read_session(); });
  progress.finish();
  if (!composed) return complain(composed.error());
  if (const Errors unread = check_sets(arguments, *scenario, *composed); !unread.empty())
    return complain(unread);

  if (const Result<void> ok = check_bound(arguments, *composed); !ok) return complain(ok.error());
  const std::string repeat = repeat_command(arguments, *scenario);
  set_check_context(repeat);
  Metrics metrics(composed->facts);
  Extras extras;
  std::vector<Observer*> observers = {&metrics};
  const Result<std::unique_ptr<EngineBackend>> made =
      make_engine_backend(*scenario, *composed, window.has_value());
  if (!made) return complain(made.error());
  EngineBackend* const values = made->get();
  Client* client = composed->client.get();
  if (values != nullptr) client = values->watch(client);
  client = attach(arguments, *scenario, window, values, client, &*composed, &extras, &observers);
  if (!arguments.quiet) observers.push_back(&progress);
  progress.start_run(composed->client->report().requests_total);
  const Result<SimulatedEnd> simulated = values != nullptr
                                             ? values->run(*scenario, &*composed, client, observers)
                                             : simulate(*scenario, &*composed, client, observers);
  const double wall_s = progress.seconds();
  progress.finish();
  if (!simulated) return complain(simulated.error());
  if (values != nullptr) extras.operations_csv = values->operations_csv();

  v1::RunResult result = make_result(*scenario, *composed, metrics, *simulated, *inputs);
  if (extras.bound) result.mutable_reuse()->set_bound_tokens(extras.bound->reused_tokens());
  SummaryContext context{wall_s, "", repeat, tagging_ns(*composed)};
  if (!arguments.no_write) {
    context.details = out;
    const std::vector<RunFile> files =
        result_files(result, *composed, metrics, observed_files(extras, simulated->end));
    if (Result<void> ok = replace_run(context.details, files); !ok)
      return complain(ok.error(), kExitEnvironment);
  }
  fmt::print("{}", format_summary(result, *format, context));
  if (!simulated->end.idle) {
    fmt::print(stderr, "{}: the run ended with {} {} still open\n", arguments.scenario,
               result.requests().open(), plural(result.requests().open(), "request"));
  }
  return kExitDone;
}

}  // namespace

void add_run_command(CLI::App& app, int* status) {
  CLI::App* const command = app.add_subcommand("run");
  const auto arguments = std::make_shared<RunArguments>();
  command->add_option("SCENARIO", arguments->scenario)->required();
  command->add_option("--out", arguments->out);
  command->add_option("--format", arguments->format);
  command->add_option("--seed", arguments->seed);
  add_repeated(command, "--set", &arguments->sets);
  command->add_option("--timeline", arguments->timeline);
  command->add_option("--backend", arguments->backend);
  command->add_option("--clock", arguments->clock);
  command->add_flag("--record", arguments->record);
  command->add_flag("--prefix-bound", arguments->prefix_bound);
  command->add_flag("--no-write", arguments->no_write);
  command->add_flag("--quiet", arguments->quiet);
  command->add_flag("--allow-unread", arguments->allow_unread);
  command->add_flag("--force", arguments->force);
  command->callback([arguments, status] { *status = run_scenario(*arguments); });
}

}  // namespace kvtwin
