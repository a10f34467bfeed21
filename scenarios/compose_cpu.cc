// The CPU engine's part of the composition root: weights, tokens, engines, and who keeps the clock.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "engine/cpu/compressed_cache.h"
#include "engine/cpu/cpu_backend.h"
#include "engine/cpu/cpu_engine.h"
#include "engine/cpu/dual_cache.h"
#include "engine/cpu/packed_cache.h"
#include "engine/cpu/paged_cache.h"
#include "engine/cpu/retrieved_cache.h"
#include "engine/policy/registry.h"
#include "models/weights.h"
#include "scenarios/compose.h"
#include "scenarios/compose_parts.h"
#include "scenarios/retrieval_options.h"
#include "scenarios/scorer_options.h"

namespace kvtwin {
namespace {

// What the CPU engine computes, axis by axis. The rest is decided and priced, but by the simulator alone.
Result<void> check_axes(const Scenario& scenario) {
  const v1::Policies& axes = scenario.values.policies();
  const struct {
    const char* axis;
    const std::string& chosen;
    std::vector<std::string> computed;
  } rows[] = {{"precision", axes.precision(), {"bf16", "fp8", "int4", "fp4", "kivi_int2", "triaxial"}},
              {"retrieval", axes.retrieval(), {"all", "quest", "arkvale", "freekv"}},
              {"partition", axes.partition(), {"uniform"}},
              {"placement", axes.placement(), {"gpu", "host", "arena"}}};
  for (const auto& row : rows) {
    if (std::find(row.computed.begin(), row.computed.end(), row.chosen) != row.computed.end()) continue;
    return mistake(scenario.where(fmt::format("policies.{}", row.axis)),
                   fmt::format("{} \"{}\" is not computed by the CPU engine", row.axis, row.chosen),
                   fmt::format("{} is; or --world=sim", fmt::join(row.computed, " or ")));
  }
  if (axes.precision() == "int4" && axes.precision_options().per_channel_keys()) {
    return mistake(scenario.where("policies.precision_options.per_channel_keys"),
                   "int4 with keys per channel is not computed by the CPU engine",
                   "per_channel_keys: false is; or --world=sim");
  }
  return {};
}

// Cells are dropped, or lie elsewhere than by position.
bool drops(const CoreConfig& config) {
  return config.policies.budget != "all" || config.policies.layout != "paged";
}

Result<void> check_drops(const Scenario& scenario, const CoreConfig& config, const LlmSpec& llm) {
  if (!drops(config)) return {};
  if (config.policies.precision != "bf16") {
    return mistake(scenario.where("policies.precision"),
                   fmt::format("precision \"{}\" under layout {} is not computed by the CPU engine",
                               config.policies.precision, config.policies.layout),
                   "precision bf16 is; or budget all and layout paged; or --world=sim");
  }
  if (config.policies.retrieval != "all") {
    return mistake(
        scenario.where("policies.retrieval"),
        fmt::format("retrieval \"{}\" among what layout {} keeps is not computed by the CPU engine",
                    config.policies.retrieval, config.policies.layout),
        "retrieval all is; or budget all and layout paged; or --world=sim");
  }
  if (const auto wrong = cpu::check_compressed(config, llm))
    return mistake(scenario.where("policies.layout"), "the CPU engine does not compute it: " + *wrong,
                   "or --world=sim");
  return {};
}

// A checkpoint is another file than the model's description: both must mean one geometry.
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
    return mistake(scenario.where("cpu.checkpoint"),
                   fmt::format("has {} {}, model {} has {}", row.found, row.what, named.name, row.named),
                   "kvtwin model import CHECKPOINT/config.json makes the model that it is");
  }
  return {};
}

Result<ModelWeights> make_weights(const Scenario& scenario, const Composed& composed) {
  const std::string& written = scenario.values.cpu().checkpoint();
  if (written.empty()) {
    if (Result<void> ok = check_dense(composed.llm, scenario.where("model.name")); !ok)
      return tl::unexpected<Mistake>(ok.error());
    return ModelWeights::random(composed.llm, scenario.values.seed());
  }
  Result<ModelWeights> loaded = load_model(scenario.file(written));
  if (!loaded) return loaded;
  if (Result<void> ok = check_same(scenario, composed.llm, loaded->llm()); !ok)
    return tl::unexpected<Mistake>(ok.error());
  return loaded;
}

// Cells in another format than the model's.
Result<std::unique_ptr<cpu::KvCache>> make_packed(const CoreConfig& config, const cpu::KvMemory& memory,
                                                  const LlmSpec& llm) {
  const PolicyAxes axes = make_axes(config.policies);
  if (axes.precision->by_tag()) {
    return cpu::DualCache::make(memory, llm,
                                {.pages_int2 = config.pages_int2,
                                 .group = config.policies.precision_spec.group,
                                 .step_tokens_max = config.step_tokens_max});
  }
  return cpu::PackedCache::make(memory, llm,
                                {.format = axes.precision->prompt_format(),
                                 .group = config.policies.precision_spec.group,
                                 .residual_tokens = axes.precision->exact_tokens_max(),
                                 .step_tokens_max = config.step_tokens_max});
}

// Which way of keeping KV the engine's policies ask for.
Result<std::unique_ptr<cpu::KvCache>> make_cache(const Scenario& scenario, const CoreConfig& config,
                                                 const ModelWeights* weights) {
  const cpu::KvMemory memory{config.page_tokens, config.pages_gpu, config.pages_host};
  const RetrievalMethod method = retrieval_method(config.policies.retrieval);
  if (method != RetrievalMethod::kAll) {
    return cpu::RetrievedCache::make(memory, weights,
                                     {.method = method, .spec = config.policies.retrieval_spec});
  }
  if (config.policies.precision != "bf16") return make_packed(config, memory, weights->llm());
  if (!drops(config)) return cpu::PagedCache::make(memory, weights->llm());
  return cpu::CompressedCache::make({config, score_spec(scenario.values), scenario.values.seed()}, memory,
                                    weights);
}

}  // namespace

struct CpuWorld::Parts {
  Parts(ModelWeights given, const cpu::TokenIdOptions& options)
      : weights(std::move(given)), tokens(options) {}

  ModelWeights weights;
  cpu::IdentityTokens tokens;
  std::vector<std::unique_ptr<cpu::CpuEngine>> engines;
};

CpuWorld::CpuWorld(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
CpuWorld::~CpuWorld() = default;

Result<std::unique_ptr<CpuWorld>> CpuWorld::make(const Scenario& scenario, const Composed& composed) {
  if (Result<void> ok = check_axes(scenario); !ok) return tl::unexpected<Mistake>(ok.error());
  Result<ModelWeights> weights = make_weights(scenario, composed);
  if (!weights) return tl::unexpected<Mistake>(weights.error());
  const bool greedy = scenario.values.cpu().decode() == "greedy";
  auto parts = std::make_unique<Parts>(std::move(*weights),
                                       cpu::TokenIdOptions{.seed = scenario.values.seed(),
                                                           .unit_tokens = composed.client->unit_tokens(),
                                                           .vocab = composed.llm.vocab,
                                                           .outputs_unknown = greedy});
  for (const CoreConfig& config : composed.options.engines) {
    cpu::CpuEngineConfig own;
    own.engine = config.engine;
    own.decoding = greedy ? cpu::Decoding::kGreedy : cpu::Decoding::kForced;
    if (Result<void> ok = check_drops(scenario, config, composed.llm); !ok)
      return tl::unexpected<Mistake>(ok.error());
    Result<std::unique_ptr<cpu::KvCache>> cache = make_cache(scenario, config, &parts->weights);
    if (!cache) return mistake(scenario.where("memory.gpu_pages"), cache.error().what, cache.error().hint);
    parts->engines.push_back(
        std::make_unique<cpu::CpuEngine>(own, &parts->weights, &parts->tokens, std::move(*cache)));
  }
  return std::unique_ptr<CpuWorld>(new CpuWorld(std::move(parts)));
}

Client* CpuWorld::watch(Client* client) { return parts_->tokens.watch(client); }

Result<SimulatedEnd> CpuWorld::run(const Scenario& scenario, Composed* composed, Client* client,
                                   const std::vector<Observer*>& observers) {
  SimulatedEnd out;
  if (scenario.values.clock() == "virtual") {
    std::vector<OutcomeSource*> values;
    for (const auto& engine : parts_->engines) values.push_back(engine.get());
    Result<SimulatedEnd> simulated = simulate(scenario, composed, client, observers, values);
    if (!simulated) return simulated;
    out = *simulated;
  } else {
    cpu::CpuBackendOptions options;
    std::vector<OutcomeSource*> sources;
    options.sleep = scenario.values.cpu().sleep();
    for (size_t i = 0; i < parts_->engines.size(); ++i) {
      options.steps_in_flight_max.push_back(composed->options.engines[i].steps_in_flight_max);
      OutcomeSource* const engine = parts_->engines[i].get();
      OutcomeLog* const log = composed->outcome_log;
      sources.push_back(log == nullptr ? engine : log->watch(engine));
    }
    cpu::EngineSources engines(sources);
    cpu::CpuBackend world(options, &engines);
    out.end = kvtwin::run(composed->options, client, &world, observers);
    out.evidence[static_cast<size_t>(Evidence::kMeasured)] = 1;
    if (world_says_kept(composed->options.engines.front())) out.kept_outcomes = "natural";
  }
  if (out.retrieval.outcomes.empty()) out.retrieval = recalled(composed->options.engines.front());
  for (const auto& engine : parts_->engines) {
    out.tokens_computed += engine->tokens_computed();
    out.samples_digest += engine->samples_digest();
  }
  return out;
}

// As the simulated world would count it, without the bytes and times that only a price knows.
SimulatedEnd::Retrieval CpuWorld::recalled(const CoreConfig& config) const {
  SimulatedEnd::Retrieval out;
  if (config.policies.retrieval == "all") return out;
  out.outcomes = "natural";
  for (const auto& engine : parts_->engines) {
    const cpu::CpuEngine::Recalled& all = engine->recalled();
    out.pages_now += all.blocking;
    out.pages_next += all.background;
    out.heads_corrected += all.corrected;
    out.heads_chose += all.heads;
    out.pages_chosen += all.chosen;
  }
  return out;
}

bool needs_simulator(const Scenario& scenario) {
  return scenario.values.world() != "cpu" || scenario.values.clock() == "virtual";
}

}  // namespace kvtwin
