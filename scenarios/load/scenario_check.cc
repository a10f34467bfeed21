#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>

#include "engine/chat/role_tagger.h"
#include "models/catalog/catalog.h"
#include "models/files/textproto.h"
#include "scenarios/load/names.h"
#include "scenarios/load/retrieval_options.h"
#include "scenarios/load/scenario.h"
#include "scenarios/load/scorer_options.h"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

// Common names of other tools for our backends.
std::string in_our_words(const std::string& value) {
  return value == "gpu" ? "cuda" : value == "simulator" || value == "simulated" ? "sim" : value;
}

class ScenarioChecker {
 public:
  ScenarioChecker(const Scenario& scenario, Errors* errors) : scenario_(scenario), errors_(*errors) {}

  void add(const std::string& field, std::string what, std::string hint) {
    errors_.push_back({scenario_.where(field), std::move(what), std::move(hint)});
  }

  void choice(const std::string& field, const std::string& value, const Names& known) {
    if (std::find(known.begin(), known.end(), value) != known.end()) return;
    const std::string close = did_you_mean(in_our_words(value), known);
    Names shown = known;
    std::replace(shown.begin(), shown.end(), std::string(), std::string("\"\""));
    add(field, fmt::format("{} is \"{}\"", last(field), value),
        close.empty() ? fmt::format("one of: {}", fmt::join(shown, ", ")) : close);
  }

  template <typename T>
  void range(const std::string& field, T value, T low, T high) {
    if (value >= low && value <= high) return;
    add(field, fmt::format("{} is {}", last(field), value), fmt::format("from {} to {}", low, high));
  }

  void required(const std::string& field, const std::string& value, const char* example) {
    if (value.empty())
      errors_.push_back({scenario_.path, fmt::format("{} is missing", field),
                         fmt::format("write, for example, {}", example)});
  }

  // Suggests the catalog's name for one written as on Hugging Face: "Qwen/Qwen3-32B" is qwen3-32b there.
  static std::string catalog_hint(const std::string& field, const std::string& written) {
    if (field != "model.name") return "";
    std::string name = fs::path(written).filename().string();
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    const std::vector<std::string> known = Catalog().names("llm");
    const std::string hint = did_you_mean(name, known);
    return std::find(known.begin(), known.end(), name) != known.end()
               ? fmt::format("did you mean \"{}\"?", name)
               : hint;
  }

  void exists(const std::string& field, const std::string& written) {
    if (written.empty()) return;
    const std::string path = scenario_.file(written);
    std::error_code ignored;
    if (fs::exists(path, ignored)) return;
    if (const std::string hint = catalog_hint(field, written); !hint.empty())
      return add(field, fmt::format("\"{}\" does not exist", written), hint);
    const std::string here = fs::absolute(written, ignored).lexically_normal().string();
    if (written[0] == '$') {
      add(field, fmt::format("\"{}\" does not exist", path),
          "set KVTWIN_DATA to the folder of the external data");
    } else if (fs::path(written).is_absolute()) {
      add(field, fmt::format("\"{}\" does not exist", path), "check the name");
    } else if (scenario_.on_command_line(field) && here != fs::absolute(path, ignored).lexically_normal()) {
      add(field, fmt::format("neither \"{}\" nor \"{}\" exists", here, path),
          "a path in --set is relative to the working directory, or to the scenario file");
    } else {
      add(field, fmt::format("\"{}\" does not exist", path), "paths are relative to the scenario file");
    }
  }

 private:
  static std::string last(const std::string& field) { return field.substr(field.rfind('.') + 1); }

  const Scenario& scenario_;
  Errors& errors_;
};

void check_limits(const v1::Limits& limits, ScenarioChecker* check) {
  check->choice("limits.preset", limits.preset(), preset_names());
  check->range("limits.requests_max", limits.requests_max(), 1u, 1u << 20);
  check->range("limits.step_tokens_max", limits.step_tokens_max(), 1u, 1u << 24);
  check->range("limits.chunk_tokens_max", limits.chunk_tokens_max(), 0u, 1u << 24);
  check->range("limits.steps_in_flight_max", limits.steps_in_flight_max(), 1u, 2u);
  check->choice("limits.batch_order", limits.batch_order(), kBatchOrders.names());
  check->choice("limits.admission", limits.admission(), kAdmissions.names());
  check->choice("limits.page_order", limits.page_order(), kPageOrders.names());
  check->choice("limits.preemption", limits.preemption(), {"recompute", "swap"});
  check->range("limits.evict_batch_pages", limits.evict_batch_pages(), 1u, 1u << 24);
  check->range("limits.offload_batch_pages", limits.offload_batch_pages(), 0u, 1u << 24);
  uint32_t before = 0;
  for (const uint32_t size : limits.capture_sizes()) {
    if (size <= before) {
      check->add("limits.capture_sizes", fmt::format("{} follows {}", size, before),
                 "capture_sizes must ascend from 1");
      break;
    }
    before = size;
  }
}

void check_formats(const v1::Policies& policies, ScenarioChecker* check) {
  const v1::PrecisionOptions& precision = policies.precision_options();
  check->range("policies.precision_options.residual_tokens", precision.residual_tokens(), 1u, 1u << 20);
  if (precision.bits() != 0) check->range("policies.precision_options.bits", precision.bits(), 2.0, 4.0);
  check->choice("policies.precision_options.ageing", precision.ageing(), kAgeings.names());
  check->exists("policies.precision_options.tag_map", precision.tag_map());
  const v1::PartitionOptions& partition = policies.partition_options();
  check->range("policies.partition_options.uniform_splits", partition.uniform_splits(), 0u, 1024u);
  check->range("policies.partition_options.aot_waves", partition.aot_waves(), 1u, 1024u);
  check->range("policies.partition_options.ctas_per_sm", partition.ctas_per_sm(), 1u, 32u);
  check->choice("policies.partition_options.priced", partition.priced(), {"ragged", "always", "never"});
  check->range("policies.partition_options.flash_splits_max", partition.flash_splits_max(), 1u, 1024u);
  check->range("policies.partition_options.tile", partition.tile(), 1u, 1u << 16);
  check->choice("policies.partition_options.aot_weight", partition.aot_weight(), kAotWeights.names());
  check->exists("policies.partition_options.profile", partition.profile());
  check->range("policies.partition_options.plan_ns", partition.plan_ns(), int64_t{0}, int64_t{1'000'000'000});
  check->range("policies.partition_options.alpha", partition.alpha(), 0.0, 100.0);
}

void check_policies(const v1::Policies& policies, ScenarioChecker* check) {
  const v1::BudgetOptions& budget = policies.budget_options();
  check->range("policies.budget_options.ratio", budget.ratio(), 0.0, 1.0);
  check->range("policies.budget_options.alpha", budget.alpha(), 0.0, 4096.0);
  check->range("policies.budget_options.inflation", budget.inflation(), 0.0, 4096.0);
  check->exists("policies.budget_options.profile", budget.profile());
  if (!budget.profile().empty() && budget.mean_size() + budget.deviation_size() > 0) {
    check->add("policies.budget_options.profile", "profile cannot be combined with mean or deviation",
               "one of the two");
  }
  for (const double mean : budget.mean()) check->range("policies.budget_options.mean", mean, 0.0, 4096.0);
  for (const double d : budget.deviation()) check->range("policies.budget_options.deviation", d, 0.0, 4096.0);
  check->choice("policies.layout_options.clustering", policies.layout_options().clustering(),
                kClusterings.names());
}

void check_replay(const v1::Replay& replay, ScenarioChecker* check) {
  check->choice("replay.mode", replay.mode(), kReplayModes.names());
  check->choice("replay.arrivals", replay.arrivals(), kArrivalModes.names());
  check->choice("replay.on_reject", replay.on_reject(), kRejectPolicies.names());
  check->choice("replay.oversized", replay.oversized(), {"refuse", "reject"});
  if (replay.arrivals() == "poisson")
    check->range("replay.sessions_per_s", replay.sessions_per_s(), 1e-6, 1e6);
  check->range("replay.population", replay.population(), 1u, 1u << 24);
  check->range("replay.arrival_scale", replay.arrival_scale(), 0.0, 1e6);
  check->range("replay.tool_scale", replay.tool_scale(), 0.0, 1e6);
  check->range("replay.think_scale", replay.think_scale(), 0.0, 1e6);
  check->range("replay.delay_scale", replay.delay_scale(), 0.0, 1e6);
  check->range("replay.think_cap_s", replay.think_cap_s(), 0.0, 1e9);
  check->range("replay.replicas", replay.replicas(), 1u, 1u << 16);
  std::vector<std::string> templates = chat_template_names();
  templates.emplace_back();
  check->choice("replay.chat_template", replay.chat_template(), templates);
  if (!replay.roles() && !replay.chat_template().empty())
    check->add("replay.roles", "roles is false, but chat_template is to find roles", "one of the two");
}

void check_backend(const v1::Scenario& values, ScenarioChecker* check) {
  check->choice("backend", values.backend(), {"sim", "cpu", "cuda"});
  check->choice("clock", values.clock(), {"wall", "virtual"});
  if (values.backend() == "sim" && values.clock() == "wall")
    check->add("clock", "the simulated backend has no wall clock", "virtual, or --backend=cpu");
  check->choice("cpu.decode", values.cpu().decode(), {"forced", "greedy"});
  check->exists("cpu.checkpoint", values.cpu().checkpoint());
  check->exists("cpu.scorer_weights", values.cpu().scorer_weights());
  check->choice("cpu.judge_tokens", values.cpu().judge_tokens(), {"soft", "response"});
  if (values.cpu().judge_tokens() == "response" && values.cpu().decode() == "greedy") {
    check->add("cpu.judge_tokens",
               "judge_tokens: \"response\" needs the response before it is generated, but decode is greedy",
               "decode: \"forced\", or judge_tokens: \"soft\"");
  }
  const int ids = values.cpu().repeat_instruction_size();
  // Other options may be invalid still, so scorer_spec() cannot read them.
  const v1::ScorerOptions& options = values.policies().scorer_options();
  const uint32_t tokens =
      options.has_repeat_instruction() ? options.repeat_instruction() : ScorerSpec().repeat_instruction;
  if (ids > 0 && static_cast<uint32_t>(ids) != tokens) {
    check->add("cpu.repeat_instruction",
               fmt::format("repeat_instruction has {} token ids, and scorer_options.repeat_instruction is {}",
                           ids, tokens),
               fmt::format("scorer_options.repeat_instruction: {}", ids));
  }
}

// Checks the settings that replay the outcomes of another run.
void check_recorded(const v1::Simulation& simulation, ScenarioChecker* check) {
  const bool retained = simulation.retained() == "recorded";
  const bool recalls = simulation.has_retrieval() && simulation.retrieval().outcomes() == "recorded";
  const std::string& run = simulation.recorded_run();
  if (!run.empty()) return check->exists("simulation.recorded_run", run);
  if (!retained && !recalls) return;
  check->add(retained ? "simulation.retained" : "simulation.retrieval.outcomes",
             "outcomes are \"recorded\", but simulation.recorded_run is not set",
             "set it to the folder of a run with --record");
}

}  // namespace

void check_scenario(const Scenario& scenario, Errors* errors) {
  const v1::Scenario& values = scenario.values;
  ScenarioChecker check(scenario, errors);
  check.required("model.name", values.model().name(),
                 "model { name: \"llama-3.1-8b\" }; see kvtwin list models");
  check.required("hardware.node", values.hardware().node(),
                 "hardware { node: \"h200\" }; see kvtwin list nodes");
  check.required("trace.path", values.trace().path(), "trace { path: \"requests.jsonl\" }");
  check.choice("model.weights", values.model().weights(), {"", "bf16", "fp8", "int8", "int4", "mxfp4"});
  check.range("engines.count", values.engines().count(), 1u, 1024u);
  check.range("engines.tensor_parallel", values.engines().tensor_parallel(), 1u, 1024u);
  check.range("hardware.nodes", values.hardware().nodes(), 0u, 1024u);
  check.range("hardware.host_memory_bytes", values.hardware().host_memory_bytes(), uint64_t{0},
              uint64_t{1} << 50);
  uint32_t engines = values.engines().count();
  for (const v1::EngineKind& kind : values.engines().further()) {
    check.range("engines.further.count", kind.count(), 1u, 1024u);
    check.range("engines.further.tensor_parallel", kind.tensor_parallel(), 1u, 1024u);
    check.required("engines.further.node", kind.node(), "further { node: \"l40s\" count: 4 }");
    engines += kind.count();
  }
  if (engines > 0 && values.engines().prefill() >= engines) {
    check.add("engines.prefill",
              fmt::format("{} of {} engines run prefill", values.engines().prefill(), engines),
              fmt::format("from 0 to {}: at least one engine must decode", engines - 1));
  }
  Names routings = kRoutings.names();
  routings.insert(routings.begin(), "auto");
  check.choice("engines.routing", values.engines().routing(), routings);
  check.range("memory.page_tokens", values.memory().page_tokens(), 1u, 4096u);
  check.choice("memory.capacity", values.memory().capacity(), kCapacityRules.names());
  check.range("memory.gpu_fraction", values.memory().gpu_fraction(), 0.01, 1.0);
  check_limits(values.limits(), &check);
  check_scorer_options(scenario, errors);
  check_formats(values.policies(), &check);
  check_policies(values.policies(), &check);
  check.choice("trace.prefix_sharing", values.trace().prefix_sharing(), kSharings.names());
  check.range("trace.jitter_ns", values.trace().jitter_ns(), int64_t{0}, int64_t{3'600'000'000'000});
  check.exists("trace.path", values.trace().path());
  if (is_catalog_path(values.model().name())) check.exists("model.name", values.model().name());
  if (is_catalog_path(values.hardware().node())) check.exists("hardware.node", values.hardware().node());
  check_replay(values.replay(), &check);
  check.exists("cost.profile", values.cost().profile());
  const int64_t host_max = 1'000'000'000;
  check.range("cost.host_ns_per_step", values.cost().host_ns_per_step(), -host_max, host_max);
  check.range("cost.host_piecewise_ns", values.cost().host_piecewise_ns(), -host_max, host_max);
  check.range("cost.host_eager_ns", values.cost().host_eager_ns(), -host_max, host_max);
  check.range("cost.front_end_request_ns", values.cost().front_end_request_ns(), int64_t{0}, host_max);
  check.range("cost.front_end_token_ns", values.cost().front_end_token_ns(), 0.0, 1e6);
  check.range("cost.first_step_host_ns", values.cost().first_step_host_ns(), int64_t{0}, 600 * host_max);
  check.range("cost.group_ns", values.cost().group_ns(), 0.0, 1e6);
  check.range("cost.reclaim_ns", values.cost().reclaim_ns(), 0.0, 1e9);
  check.choice("cost.compressions", values.cost().compressions(), {"roofline", "free"});
  check.choice("cost.step_times", values.cost().step_times(), {"expected", "low", "high"});
  check_retrieval(values, [&](const std::string& field, std::string what, std::string hint) {
    check.add(field, std::move(what), std::move(hint));
  });
  check.exists("simulation.retrieval.profile", values.simulation().retrieval().profile());
  check.choice("simulation.retained", values.simulation().retained(),
               {"fixed", "profile", "contexts", "recorded"});
  check_recorded(values.simulation(), &check);
  check.choice("simulation.fidelity", values.simulation().fidelity(), {"auto", "collapsed", "expanded"});
  check_backend(values, &check);
}

}  // namespace kvtwin
