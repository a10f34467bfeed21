// The CPU engine's part of the composition root.

#include <utility>

#include "engine/cpu/cpu_engine.h"
#include "engine/cpu/paged_cache.h"
#include "models/weights.h"
#include "scenarios/compose_values.h"

namespace kvtwin {
namespace {

// What the CPU engine computes, axis by axis.
Result<void> check_cpu(const Scenario& scenario) {
  const v1::Policies& axes = scenario.values.policies();
  return check_axes(scenario, "the CPU engine",
                    {{"scorer", axes.scorer(), {"none"}},
                     {"budget", axes.budget(), {"all"}},
                     {"layout", axes.layout(), {"paged"}},
                     {"precision", axes.precision(), {"bf16"}},
                     {"retrieval", axes.retrieval(), {"all"}},
                     {"partition", axes.partition(), {"uniform"}},
                     {"placement", axes.placement(), {"gpu", "host"}}});
}

// Which way of keeping KV the engine's policies ask for.
Result<std::unique_ptr<cpu::KvCache>> make_cache(const CoreConfig& config, const LlmSpec& llm) {
  const cpu::KvMemory memory{config.page_tokens, config.pages_gpu, config.pages_host};
  return cpu::PagedCache::make(memory, llm);
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
    Result<std::unique_ptr<cpu::KvCache>> cache = make_cache(config, composed.llm);
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
  for (size_t i = 0; out && i < engines.size(); ++i) {
    out->tokens_computed += parts_->engines[i]->tokens_computed();
    out->samples_digest += parts_->engines[i]->samples_digest();
  }
  return out;
}

}  // namespace kvtwin
