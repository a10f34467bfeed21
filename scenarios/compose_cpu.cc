// The CPU engine's part of the composition root.

#include <fmt/format.h>

#include <utility>

#include "engine/cpu/compressed_cache.h"
#include "engine/cpu/cpu_engine.h"
#include "engine/cpu/paged_cache.h"
#include "engine/cpu/retrieved_cache.h"
#include "models/weights.h"
#include "scenarios/compose_values.h"
#include "scenarios/retrieval_options.h"
#include "scenarios/scorer_options.h"

namespace kvtwin {
namespace {

// What the CPU engine computes, axis by axis.
Result<void> check_cpu(const Scenario& scenario) {
  const v1::Policies& axes = scenario.values.policies();
  return check_axes(scenario, "the CPU engine",
                    {{"precision", axes.precision(), {"bf16"}},
                     {"retrieval", axes.retrieval(), {"all", "quest", "arkvale", "freekv"}},
                     {"partition", axes.partition(), {"uniform"}},
                     {"placement", axes.placement(), {"gpu", "host", "arena"}}});
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

// Which way of keeping KV the engine's policies ask for.
Result<std::unique_ptr<cpu::KvCache>> make_cache(const Scenario& scenario, const CoreConfig& config,
                                                 const ModelWeights* weights) {
  const cpu::KvMemory memory{config.page_tokens, config.pages_gpu, config.pages_host};
  const RetrievalMethod method = retrieval_method(config.policies.retrieval);
  if (method != RetrievalMethod::kAll) {
    return cpu::RetrievedCache::make(memory, weights,
                                     {.method = method, .spec = config.policies.retrieval_spec});
  }
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

Result<std::unique_ptr<ValuesWorld>> CpuWorld::make(const Scenario& scenario, const Composed& composed) {
  if (Result<void> ok = check_cpu(scenario); !ok) return tl::unexpected<Mistake>(ok.error());
  Result<ModelWeights> weights = compose_weights(scenario, composed, false);
  if (!weights) return tl::unexpected<Mistake>(weights.error());
  auto parts = std::make_unique<Parts>(std::move(*weights), token_options(scenario, composed));
  for (const CoreConfig& config : composed.options.engines) {
    cpu::CpuEngineConfig own;
    own.engine = config.engine;
    own.decoding = decodes_greedily(scenario) ? cpu::Decoding::kGreedy : cpu::Decoding::kForced;
    if (Result<void> ok = check_drops(scenario, config, composed.llm); !ok)
      return tl::unexpected<Mistake>(ok.error());
    Result<std::unique_ptr<cpu::KvCache>> cache = make_cache(scenario, config, &parts->weights);
    if (!cache) return mistake(scenario.where("memory.gpu_pages"), cache.error().what, cache.error().hint);
    parts->engines.push_back(
        std::make_unique<cpu::CpuEngine>(own, &parts->weights, &parts->tokens, std::move(*cache)));
  }
  return std::unique_ptr<ValuesWorld>(new CpuWorld(std::move(parts)));
}

Client* CpuWorld::watch(Client* client) { return parts_->tokens.watch(client); }

Result<SimulatedEnd> CpuWorld::run(const Scenario& scenario, Composed* composed, Client* client,
                                   const std::vector<Observer*>& observers) {
  std::vector<OutcomeSource*> engines;
  for (const auto& engine : parts_->engines) engines.push_back(engine.get());
  Result<SimulatedEnd> out = run_values(scenario, composed, client, observers, engines);
  if (out && out->retrieval.outcomes.empty()) out->retrieval = recalled(composed->options.engines.front());
  for (size_t i = 0; out && i < engines.size(); ++i) {
    out->tokens_computed += parts_->engines[i]->tokens_computed();
    out->samples_digest += parts_->engines[i]->samples_digest();
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

}  // namespace kvtwin
