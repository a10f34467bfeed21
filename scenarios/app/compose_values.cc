#include "scenarios/app/compose_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/common/cpu_backend.h"
#include "engine/cpu/cpu_engine.h"
#include "engine/methods/registry.h"
#include "engine/methods/traits.h"
#include "scenarios/app/compose_forced.h"
#include "scenarios/app/compose_parts.h"
#include "scenarios/load/scorer_options.h"

namespace kvtwin {
namespace {

// A checkpoint is a file of its own: its geometry must equal that of the model's description.
Result<void> check_same(const Scenario& scenario, const LlmSpec& named, const LlmSpec& found) {
  const struct {
    const char* what;
    uint32_t named, found;
  } rows[] = {
      {"layers", named.layers, found.layers},       {"query heads", named.query_heads, found.query_heads},
      {"KV heads", named.kv_heads, found.kv_heads}, {"head_dim", named.head_dim, found.head_dim},
      {"hidden", named.hidden, found.hidden},       {"intermediate", named.intermediate, found.intermediate},
      {"vocabulary", named.vocab, found.vocab}};
  for (const auto& row : rows) {
    if (row.named == row.found) continue;
    return make_error(scenario.where("cpu.checkpoint"),
                      fmt::format("has {} {}, model {} has {}", row.found, row.what, named.name, row.named),
                      "kvtwin model import CHECKPOINT/config.json imports the checkpoint's model");
  }
  return {};
}

}  // namespace

bool drops(const CoreConfig& config) {
  return !budget_traits(config.policies.budget).keeps_all ||
         layout_traits(config.policies.layout).slot_retention != SlotRetention::kAll;
}

bool ranks_by_weights(const Scenario& scenario) {
  const v1::Policies& axes = scenario.values.policies();
  return !budget_traits(axes.budget()).keeps_all &&
         score_spec(scenario.values).scorer->weights != kernels::TrainedWeights::kNone;
}

Result<std::optional<cpu::ScorerWeights>> scorer_weights(const Scenario& scenario, const LlmSpec& llm) {
  const std::string& written = scenario.values.cpu().scorer_weights();
  if (written.empty()) return std::nullopt;
  const v1::Policies& axes = scenario.values.policies();
  if (!ranks_by_weights(scenario)) {
    return make_error(
        scenario.where("cpu.scorer_weights"),
        fmt::format("scorer \"{}\" under budget {} has no weights", axes.scorer(), axes.budget()),
        "\"\", or scorer fastkvzip, trimkv, judge_q or intent_residual");
  }
  Result<cpu::ScorerWeights> loaded =
      cpu::ScorerWeights::load(*score_spec(scenario.values).scorer, llm,
                               captured_queries(axes.scorer(), scorer_spec(axes)), scenario.file(written));
  if (!loaded) return tl::unexpected<Error>(loaded.error());
  return std::optional(std::move(*loaded));
}

Result<ModelWeights> compose_weights(const Scenario& scenario, const LlmSpec& llm, bool outline) {
  const std::string& written = scenario.values.cpu().checkpoint();
  if (written.empty()) {
    if (Result<void> ok = check_dense(llm, scenario.where("model.name")); !ok)
      return tl::unexpected<Error>(ok.error());
    const uint64_t seed = scenario.values.seed();
    return outline ? ModelWeights::random_outline(llm, seed) : ModelWeights::random(llm, seed);
  }
  Result<ModelWeights> loaded = load_model(scenario.file(written));
  if (!loaded) return loaded;
  if (Result<void> ok = check_same(scenario, llm, loaded->llm()); !ok)
    return tl::unexpected<Error>(ok.error());
  return loaded;
}

bool decodes_greedily(const Scenario& scenario) { return scenario.values.cpu().decode() == "greedy"; }

cpu::TokenIdOptions token_options(const Scenario& scenario, const Composed& composed) {
  cpu::TokenIdOptions out{.seed = scenario.values.seed(),
                          .unit_tokens = composed.client->unit_tokens(),
                          .vocab = composed.llm.vocab,
                          .outputs_unknown = decodes_greedily(scenario)};
  if (composed.tokens) {
    // All are heap-allocated, so these pointers survive moving `composed`.
    out.given = [tokens = composed.tokens.get(), chat = composed.chat.get(),
                 client = composed.client.get()](RequestId request) {
      const ReplayRequestInfo info = client->request_info(request);
      return chat != nullptr ? chat->request(info.session_index, info.node)
                             : tokens->request(info.session_index, info.node);
    };
  }
  return out;
}

Result<void> check_combination(const Scenario& scenario, const CoreConfig& config, Computes where,
                               const char* engine) {
  const PolicySet& set = config.policies;
  const CombinationRow* const row = find_problem(combination_of(make_axes(set), set, config), where);
  if (row == nullptr) return {};
  return make_error(scenario.where(fmt::format("policies.{}", name_of(row->of.first))),
                    fmt::format("{} does not compute it: {}", engine, sentence(*row, set, config)),
                    "or --backend=sim");
}

namespace {

// Forwards to another source and sums what its steps recall.
class RecallSums final : public OutcomeSource {
 public:
  explicit RecallSums(OutcomeSource* source) : source_(*source) {}

  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override {
    source_.step(launch, offset, values);
    for (const LayerRecall& recall : values->recalls) {
      sums_.pages_now += recall.blocking, sums_.pages_next += recall.background;
      sums_.heads_corrected += recall.corrected;
      sums_.heads_chose += recall.heads, sums_.pages_chosen += recall.chosen;
    }
  }
  void notify(const Command& command) override { source_.notify(command); }
  // Sums as the simulated backend reports them, without bytes and times, which need a price.
  const SimulatedEnd::Retrieval& sums() const { return sums_; }

 private:
  OutcomeSource& source_;
  SimulatedEnd::Retrieval sums_;
};

cpu::Stopwatch stopwatch_of(const Composed& composed) {
  if (!composed.step_time) return cpu::wall_time;
  return [each = *composed.step_time](const std::function<void()>& work) {
    work();
    return each;
  };
}

// Runs the engines under the wall clock.
SimulatedEnd run_measured(const Scenario& scenario, Composed* composed, Client* client,
                          const std::vector<Observer*>& observers, ForcedEngines* engines,
                          std::function<Duration(EngineId, TransferId)> copy_time) {
  cpu::CpuBackendOptions options;
  options.sleep = scenario.values.cpu().sleep();
  options.copy_time = std::move(copy_time);
  if (!composed->step_time) options.host_clock = cpu::wall_clock;
  options.before_step = [&](const LaunchStep& launch, uint32_t offset) { engines->prepare(launch, offset); };
  for (const CoreConfig& config : composed->options.engines)
    options.steps_in_flight_max.push_back(config.steps_in_flight_max);
  std::vector<OutcomeSource*> watched;
  for (OutcomeSource* const engine : engines->sources()) {
    OutcomeLog* const log = composed->outcome_log;
    watched.push_back(log == nullptr ? engine : log->watch(engine));
  }
  cpu::EngineSources sources(watched);
  RecallSums recalls(&sources);
  cpu::CpuBackend backend(options, &recalls, stopwatch_of(*composed));
  SimulatedEnd out;
  out.end = kvtwin::run(composed->options, client, &backend, observers);
  out.evidence[static_cast<size_t>(Evidence::kMeasured)] = 1;
  if (!engines->recalled_by().empty()) out.retrieval = recalls.sums();
  return out;
}

}  // namespace

Result<SimulatedEnd> run_values(const Scenario& scenario, Composed* composed, Client* client,
                                const std::vector<Observer*>& observers,
                                const std::vector<ForcibleSource*>& engines,
                                std::function<Duration(EngineId, TransferId)> copy_time) {
  const Result<std::unique_ptr<ForcedEngines>> forced_outcome =
      ForcedEngines::make(scenario, *composed, engines);
  if (!forced_outcome) return tl::unexpected<Error>(forced_outcome.error());
  ForcedEngines& forced = **forced_outcome;
  const v1::Simulation& simulation = scenario.values.simulation();
  if (!simulation.force_outcomes() && !simulation.recorded_run().empty())
    composed->notes.push_back(
        "values decide, not simulation.recorded_run; simulation.force_outcomes: true forces its outcomes");
  Result<SimulatedEnd> out =
      scenario.values.clock() == "virtual"
          ? simulate(scenario, composed, client, observers, forced.sources())
          : run_measured(scenario, composed, client, observers, &forced, std::move(copy_time));
  if (!out) return out;
  out->retained_outcomes = forced.retained_by();
  out->retrieval.outcomes = forced.recalled_by();
  return out;
}

Result<std::unique_ptr<EngineBackend>> make_engine_backend(const Scenario& scenario, const Composed& composed,
                                                           bool timeline) {
  const std::string& backend = scenario.values.backend();
  if (backend == "cuda") return make_cuda_backend(scenario, composed, timeline);
  if (backend == "cpu") return CpuEngineBackend::make(scenario, composed);
  return std::unique_ptr<EngineBackend>();
}

bool needs_simulator(const Scenario& scenario) {
  return scenario.values.backend() == "sim" || scenario.values.clock() == "virtual";
}

Result<void> check_backend(const Scenario& scenario, const std::string& name) {
  if (needs_simulator(scenario) && !can_simulate())
    return make_error(name, "this build has no simulated backend",
                      "install libsimgrid-dev and configure again, or --backend=cpu --clock=wall");
  return scenario.values.backend() == "cuda" ? check_cuda_backend(scenario) : Result<void>{};
}

}  // namespace kvtwin
