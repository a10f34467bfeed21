// The CUDA engine's part of compose(), in builds with and without CUDA.

#include "scenarios/app/compose_values.h"

#ifdef KVTWIN_HAVE_CUDA

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "engine/cuda/caches.h"
#include "engine/cuda/cuda_engine.h"
#include "engine/cuda/packed/packed.h"
#include "engine/cuda/retrieval/retrieved.h"
#include "engine/methods/probe_passes.h"
#include "engine/methods/registry.h"
#include "engine/methods/traits.h"
#include "scenarios/app/compose_partition.h"
#include "scenarios/app/formats.h"
#include "scenarios/app/sampled_engine.h"
#include "scenarios/load/retrieval_options.h"
#include "scenarios/load/scorer_options.h"

namespace kvtwin {
namespace {

// Fails for KV formats that the CUDA engine does not store.
Result<void> check_precision(const Scenario& scenario, const CoreConfig& config, const LlmSpec& llm) {
  const PrecisionSpec& spec = config.policies.precision_spec;
  const PrecisionTraits precision = precision_traits(config.policies.precision);
  for (const Format format : {precision.prompt_format, precision.decode_format}) {
    if (const auto problem = cuda::check_packed(format, spec.group, llm, config.page_tokens))
      return make_error(scenario.where("policies.precision"),
                        "the CUDA engine does not compute it: " + *problem, "or --backend=sim");
  }
  if (!drops(config)) return {};
  if (const auto problem = cuda::check_compressed(config, score_spec(scenario.values), llm))
    return make_error(scenario.where("policies.layout"), "the CUDA engine does not compute it: " + *problem,
                      "or --backend=sim");
  return {};
}

Result<void> check_engine(const Scenario& scenario, const CoreConfig& config, const LlmSpec& llm) {
  if (Result<void> ok = check_combination(scenario, config, Computes::kCuda, "the CUDA engine"); !ok)
    return ok;
  Errors errors;  // compose() has reported them
  if (const auto problem = cuda::check_partition(config, load_partition(scenario, llm, &errors)))
    return make_error(scenario.where("policies.partition"), *problem, "or --backend=cpu, or --backend=sim");
  const RetrievalKind kind = retrieval_traits(config.policies.retrieval).kind;
  if (precision_traits(config.policies.precision).packed()) return check_precision(scenario, config, llm);
  if (drops(config) && kind != RetrievalKind::kReadsAll) {
    if (const auto problem = cuda::check_recalled(config, score_spec(scenario.values), kind,
                                                  recall_copies(scenario.values), llm))
      return make_error(scenario.where("policies.retrieval"),
                        "the CUDA engine does not compute it with dropped KV entries: " + *problem,
                        "or --backend=cpu, or --backend=sim");
  } else if (drops(config)) {
    if (const auto problem = cuda::check_compressed(config, score_spec(scenario.values), llm))
      return make_error(scenario.where("policies.layout"), "the CUDA engine does not compute it: " + *problem,
                        "or --backend=sim");
  } else if (kind != RetrievalKind::kReadsAll) {
    if (const auto problem = cuda::check_retrieved(kind, config.policies.retrieval_spec,
                                                   recall_copies(scenario.values), llm, config.page_tokens))
      return make_error(scenario.where("policies.retrieval"),
                        "the CUDA engine does not compute it: " + *problem,
                        "or --backend=cpu, or --backend=sim");
  }
  return {};
}

Result<void> check_cuda(const Scenario& scenario, const Composed& composed) {
  for (const CoreConfig& config : composed.options.engines) {
    if (Result<void> ok = check_engine(scenario, config, composed.llm); !ok) return ok;
  }
  const uint32_t tp = scenario.values.engines().tensor_parallel();
  if (tp != 1) {
    return make_error(scenario.where("engines.tensor_parallel"),
                      fmt::format("the CUDA engine runs on one GPU, not on {}", tp), "1; or --backend=sim");
  }
  if (composed.llm.weights.dtype != NumberFormat::kBf16) {
    return make_error(
        scenario.where("model.weights"),
        fmt::format("the CUDA engine does not compute weights in {}", name_of(composed.llm.weights.dtype)),
        "bf16; or --backend=sim");
  }
  return check_cuda_backend(scenario);
}

Result<cuda::OwnedCache> make_packed(const CoreConfig& config, const cuda::KvMemory& memory,
                                     const LlmSpec* llm) {
  const PrecisionTraits precision = precision_traits(config.policies.precision);
  const uint32_t group = config.policies.precision_spec.group;
  if (precision.by_tag)
    return cuda::make_mixed_precision({.pages_int2 = config.pages_int2, .group = group}, memory, llm);
  return cuda::make_packed({.format = precision.prompt_format,
                            .group = group,
                            .residual_tokens = exact_tokens_max(precision, config.policies.precision_spec)},
                           memory, llm);
}

// The KV cache that the engine's policies need. Null: every axis is at its default.
Result<cuda::OwnedCache> make_cache(const Scenario& scenario, const CoreConfig& config,
                                    const cuda::CudaEngineConfig& engine,
                                    const std::optional<cpu::ScorerWeights>& trained,
                                    const ModelWeights* weights) {
  const RetrievalKind kind = retrieval_traits(config.policies.retrieval).kind;
  const bool packs = precision_traits(config.policies.precision).packed();
  if (!drops(config) && kind == RetrievalKind::kReadsAll && !packs) return cuda::OwnedCache();
  cuda::KvMemory memory{engine.page_tokens, engine.pages_gpu, engine.pages_host, engine.rows_max};
  for (const uint32_t size : engine.row_sizes) memory.rows_max = std::max(memory.rows_max, size);
  memory.requests_max = engine.samples_max;
  if (packs && !drops(config)) return make_packed(config, memory, &weights->llm());
  const cuda::RetrievedOptions retrieved{
      .kind = kind,
      .spec = config.policies.retrieval_spec,
      .copies = recall_copies(scenario.values),
      .prefix_cache = config.prefix_cache && placement_traits(config.policies.placement).uses_resident};
  if (!drops(config)) return cuda::make_retrieved(retrieved, memory, weights->llm());
  const auto& instruction = scenario.values.cpu().repeat_instruction();
  cuda::CompressedOptions options;
  options.config = {.core = config,
                    .score = score_spec(scenario.values),
                    .seed = scenario.values.seed(),
                    .weights = trained,
                    .ask_response = scenario.values.cpu().judge_tokens() == "response",
                    .repeat_instruction = {instruction.begin(), instruction.end()}};
  Errors errors;  // compose() has reported them
  options.partition = load_partition(scenario, weights->llm(), &errors);
  options.planned = planned_fractions(config.policies, options.partition);
  if (kind != RetrievalKind::kReadsAll && !packs)
    return cuda::make_recalled(options, retrieved, memory, weights);
  return cuda::make_compressed(options, memory, weights);
}

class CudaEngineBackend final : public EngineBackend {
 public:
  CudaEngineBackend(const Scenario& scenario, const Composed& composed, bool timeline)
      : tokens_(token_options(scenario, composed)),
        csv_(scenario.values.cuda().timings()),
        wall_(scenario.values.clock() == "wall"),
        log_(timeline && wall_),
        timed_(csv_ || (timeline && wall_)) {}

  Result<void> make(const Scenario& scenario, const Composed& composed);

  Client* watch(Client* client) override { return tokens_.watch(client); }
  Result<SimulatedEnd> run(const Scenario& scenario, Composed* composed, Client* client,
                           const std::vector<Observer*>& observers) override;
  OperationsOfStep operations() override;
  std::string operations_csv() const override { return csv_ ? log_.csv() : std::string(); }

 private:
  cpu::IdentityTokens tokens_;
  const bool csv_, wall_;
  cuda::OperationLog log_;
  const bool timed_;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<cuda::DeviceModel> model_;
  std::vector<std::unique_ptr<cuda::CudaEngine>> engines_;
};

Result<void> CudaEngineBackend::make(const Scenario& scenario, const Composed& composed) {
  const kernels::ScorerDefinition& scorer = *score_spec(scenario.values).scorer;
  Result<ModelWeights> weights = compose_weights(scenario, composed.llm, !cuda::reads_matrices(scorer));
  if (!weights) return tl::unexpected<Error>(weights.error());
  weights_ = std::make_unique<ModelWeights>(std::move(*weights));
  Result<std::unique_ptr<cuda::DeviceModel>> model = cuda::DeviceModel::make(*weights_);
  if (!model) return make_error(scenario.where("model.name"), model.error().what, model.error().hint);
  model_ = std::move(*model);
  const Result<std::optional<cpu::ScorerWeights>> trained = scorer_weights(scenario, composed.llm);
  if (!trained) return tl::unexpected<Error>(trained.error());
  for (const CoreConfig& config : composed.options.engines) {
    cuda::CudaEngineConfig own;
    own.engine = config.engine;
    own.page_tokens = config.page_tokens;
    own.pages_gpu = config.pages_gpu;
    own.pages_host = config.pages_host;
    // A pass of probe tokens may have more than step_tokens_max.
    own.rows_max = std::max(config.step_tokens_max, probe_passes(config.policies).tokens_max());
    own.row_sizes = config.capture_sizes;
    own.samples_max = std::min(config.requests_max, config.step_tokens_max);
    own.decoding = decodes_greedily(scenario) ? cpu::Decoding::kGreedy : cpu::Decoding::kForced;
    own.concurrent_copies = wall_;
    own.log = timed_ ? &log_ : nullptr;
    Result<cuda::OwnedCache> cache = make_cache(scenario, config, own, *trained, weights_.get());
    if (!cache) return make_error(scenario.where("memory.gpu_pages"), cache.error().what, cache.error().hint);
    Result<std::unique_ptr<cuda::CudaEngine>> engine =
        cuda::CudaEngine::make(own, model_.get(), &tokens_, std::move(*cache));
    if (!engine)
      return make_error(scenario.where("memory.gpu_pages"), engine.error().what, engine.error().hint);
    engines_.push_back(std::move(*engine));
  }
  return {};
}

Result<SimulatedEnd> CudaEngineBackend::run(const Scenario& scenario, Composed* composed, Client* client,
                                            const std::vector<Observer*>& observers) {
  std::vector<ForcibleSource*> sources;
  std::deque<SampledEngine<cuda::CudaEngine>> watched;
  for (const auto& engine : engines_) {
    sources.push_back(composed->samples == nullptr ? static_cast<ForcibleSource*>(engine.get())
                                                   : &watched.emplace_back(engine.get(), composed->samples));
  }
  const auto copy_time = [this](EngineId engine, TransferId transfer) {
    return engines_.at(raw(engine))->copy_time(transfer);
  };
  Result<SimulatedEnd> out = run_values(scenario, composed, client, observers, sources, copy_time);
  for (size_t i = 0; out && i < engines_.size(); ++i) {
    out->tokens_computed += engines_[i]->tokens_computed();
    out->samples_digest += engines_[i]->samples_digest();
  }
  return out;
}

OperationsOfStep CudaEngineBackend::operations() {
  if (!timed_ || !wall_) return {};
  return [this](EngineId engine, StepId step) {
    std::vector<StepOperation> out;
    for (const cuda::OperationTime& one : log_.take(engine, step))
      out.push_back({name_of(one.operation), one.layer, one.from, one.to});
    return out;
  };
}

}  // namespace

Result<void> check_cuda_backend(const Scenario& scenario) {
  const Result<void> ok = cuda::check_gpu();
  if (ok) return {};
  const std::string& way_out = ok.error().hint;
  return make_error(scenario.where("backend"), ok.error().what,
                    way_out.empty() ? "--backend=cpu, or --backend=sim" : way_out + "; or --backend=cpu");
}

Result<void> check_cuda_backend(const Scenario& scenario, const Composed& composed) {
  return check_cuda(scenario, composed);
}

Result<std::unique_ptr<EngineBackend>> make_cuda_backend(const Scenario& scenario, const Composed& composed,
                                                         bool timeline) {
  if (Result<void> ok = check_cuda(scenario, composed); !ok) return tl::unexpected<Error>(ok.error());
  auto out = std::make_unique<CudaEngineBackend>(scenario, composed, timeline);
  if (Result<void> ok = out->make(scenario, composed); !ok) return tl::unexpected<Error>(ok.error());
  return std::unique_ptr<EngineBackend>(std::move(out));
}

}  // namespace kvtwin

#else

namespace kvtwin {

Result<void> check_cuda_backend(const Scenario& scenario) {
  return make_error(scenario.where("backend"), "this build has no CUDA backend",
                    "configure with nvcc on PATH and -DKVTWIN_CUDA=ON; or --backend=cpu, or --backend=sim");
}

Result<void> check_cuda_backend(const Scenario& scenario, const Composed&) {
  return check_cuda_backend(scenario);
}

Result<std::unique_ptr<EngineBackend>> make_cuda_backend(const Scenario& scenario, const Composed& composed,
                                                         bool) {
  return tl::unexpected<Error>(check_cuda_backend(scenario, composed).error());
}

}  // namespace kvtwin

#endif
