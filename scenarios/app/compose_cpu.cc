// The CPU engine's part of compose().

#include <fmt/format.h>

#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "engine/cpu/compression/compressed_cache.h"
#include "engine/cpu/cpu_engine.h"
#include "engine/cpu/packed/mixed_precision_cache.h"
#include "engine/cpu/packed/packed_cache.h"
#include "engine/cpu/paged_cache.h"
#include "engine/cpu/retrieval/recalled_entries.h"
#include "engine/cpu/retrieval/retrieved_cache.h"
#include "engine/methods/registry.h"
#include "engine/methods/traits.h"
#include "models/weights/weights.h"
#include "scenarios/app/compose_values.h"
#include "scenarios/app/sampled_engine.h"
#include "scenarios/load/retrieval_options.h"
#include "scenarios/load/scorer_options.h"

namespace kvtwin {
namespace {

// True for pages that are chosen on the GPU and packed.
bool chooses_packed(const CoreConfig& config) {
  return retrieval_traits(config.policies.retrieval).kind == RetrievalKind::kPagesOnGpu &&
         precision_traits(config.policies.precision).packed();
}

cpu::KvMemory memory_of(const CoreConfig& config) {
  return {config.page_tokens, config.pages_gpu, config.pages_host, false, config.pages_disk};
}

cpu::RetrievedOptions retrieved_options(const Scenario& scenario, const CoreConfig& config) {
  const PolicySet& set = config.policies;
  return {.kind = retrieval_traits(set.retrieval).kind,
          .spec = set.retrieval_spec,
          .copies = recall_copies(scenario.values),
          .prefix_cache = config.prefix_cache,
          .format = precision_traits(set.precision).prompt_format,
          .group = set.precision_spec.group};
}

Result<void> check_cache(const Scenario& scenario, const CoreConfig& config, const LlmSpec& llm) {
  if (Result<void> ok = check_combination(scenario, config, Computes::kCpu, "the CPU engine"); !ok) return ok;
  if (const auto problem = cpu::check_retrieved(retrieved_options(scenario, config), memory_of(config), llm))
    return make_error(scenario.where("policies.retrieval_options"), "the CPU engine cannot: " + *problem,
                      "or --backend=sim");
  if (!drops(config) && !chooses_packed(config)) return {};
  if (const auto problem = cpu::check_compressed(config, llm))
    return make_error(scenario.where("policies.layout"), "the CPU engine does not compute it: " + *problem,
                      "or --backend=sim");
  return {};
}

// A cache of KV entries in another format than the model's.
Result<std::unique_ptr<cpu::KvCache>> make_packed(const CoreConfig& config, const cpu::KvMemory& memory,
                                                  const LlmSpec& llm) {
  const PrecisionTraits precision = precision_traits(config.policies.precision);
  if (precision.by_tag) {
    return cpu::MixedPrecisionCache::make(memory, llm,
                                          {.pages_int2 = config.pages_int2,
                                           .group = config.policies.precision_spec.group,
                                           .step_tokens_max = config.step_tokens_max});
  }
  return cpu::PackedCache::make(
      memory, llm,
      {.format = precision.prompt_format,
       .group = config.policies.precision_spec.group,
       .residual_tokens = exact_tokens_max(precision, config.policies.precision_spec),
       .step_tokens_max = config.step_tokens_max});
}

// The KV cache that the engine's policies need.
Result<std::unique_ptr<cpu::KvCache>> make_cache(const Scenario& scenario, const CoreConfig& config,
                                                 const ModelWeights* weights,
                                                 const std::optional<cpu::ScorerWeights>& trained_weights) {
  const cpu::KvMemory memory = memory_of(config);
  const cpu::RetrievedOptions retrieved = retrieved_options(scenario, config);
  if (!drops(config) && !chooses_packed(config)) {
    if (retrieved.kind != RetrievalKind::kReadsAll) {
      return cpu::RetrievedCache::make(memory, weights, retrieved);
    }
    if (precision_traits(config.policies.precision).packed())
      return make_packed(config, memory, weights->llm());
    return cpu::PagedCache::make(memory, weights->llm());
  }
  const auto& instruction = scenario.values.cpu().repeat_instruction();
  const cpu::CompressedConfig compressed{.core = config,
                                         .score = score_spec(scenario.values),
                                         .seed = scenario.values.seed(),
                                         .weights = trained_weights,
                                         .ask_response = scenario.values.cpu().judge_tokens() == "response",
                                         .repeat_instruction = {instruction.begin(), instruction.end()}};
  if (placement_traits(config.policies.placement).uses_resident)
    return cpu::RecalledEntries::make(compressed, memory, weights, retrieved);
  return cpu::CompressedCache::make(compressed, memory, weights);
}

}  // namespace

struct CpuEngineBackend::Parts {
  Parts(ModelWeights given, const cpu::TokenIdOptions& options)
      : weights(std::move(given)), tokens(options) {}

  ModelWeights weights;
  cpu::IdentityTokens tokens;
  std::vector<std::unique_ptr<cpu::CpuEngine>> engines;
};

CpuEngineBackend::CpuEngineBackend(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
CpuEngineBackend::~CpuEngineBackend() = default;

Result<std::unique_ptr<EngineBackend>> CpuEngineBackend::make(const Scenario& scenario,
                                                              const Composed& composed) {
  Result<ModelWeights> weights = compose_weights(scenario, composed.llm, false);
  if (!weights) return tl::unexpected<Error>(weights.error());
  auto parts = std::make_unique<Parts>(std::move(*weights), token_options(scenario, composed));
  const Result<std::optional<cpu::ScorerWeights>> scorer = scorer_weights(scenario, composed.llm);
  if (!scorer) return tl::unexpected<Error>(scorer.error());
  for (const CoreConfig& config : composed.options.engines) {
    cpu::CpuEngineConfig own;
    own.engine = config.engine;
    own.decoding = decodes_greedily(scenario) ? cpu::Decoding::kGreedy : cpu::Decoding::kForced;
    if (Result<void> ok = check_cache(scenario, config, composed.llm); !ok)
      return tl::unexpected<Error>(ok.error());
    Result<std::unique_ptr<cpu::KvCache>> cache = make_cache(scenario, config, &parts->weights, *scorer);
    if (!cache) return make_error(scenario.where("memory.gpu_pages"), cache.error().what, cache.error().hint);
    parts->engines.push_back(
        std::make_unique<cpu::CpuEngine>(own, &parts->weights, &parts->tokens, std::move(*cache)));
  }
  return std::unique_ptr<EngineBackend>(new CpuEngineBackend(std::move(parts)));
}

Client* CpuEngineBackend::watch(Client* client) { return parts_->tokens.watch(client); }

Result<SimulatedEnd> CpuEngineBackend::run(const Scenario& scenario, Composed* composed, Client* client,
                                           const std::vector<Observer*>& observers) {
  const bool needs_response = scenario.values.cpu().judge_tokens() == "response";
  if (ranks_by_weights(scenario) && scenario.values.cpu().scorer_weights().empty() && !needs_response) {
    composed->notes.push_back(fmt::format(
        "scorer {} ranks by weights drawn from the seed: its choice is reproducible, but not trained",
        scenario.values.policies().scorer()));
  }
  std::vector<ForcibleSource*> engines;
  std::deque<SampledEngine<cpu::CpuEngine>> watched;
  for (const auto& engine : parts_->engines) {
    engines.push_back(composed->samples == nullptr ? static_cast<ForcibleSource*>(engine.get())
                                                   : &watched.emplace_back(engine.get(), composed->samples));
  }
  Result<SimulatedEnd> out = run_values(scenario, composed, client, observers, engines);
  for (size_t i = 0; out && i < engines.size(); ++i) {
    out->tokens_computed += parts_->engines[i]->tokens_computed();
    out->samples_digest += parts_->engines[i]->samples_digest();
  }
  return out;
}

}  // namespace kvtwin
