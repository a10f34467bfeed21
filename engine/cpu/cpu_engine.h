// CpuEngine performs the steps of one serving engine on a CPU, in fp32: it computes real tokens on real
// pages.
//
// It performs single steps in order and reports their outcomes. Two backends drive it: CpuBackend
// (engine/common/cpu_backend.h) measures the time of each step; the simulated backend uses it as
// OutcomeSource and keeps its own time (--clock=virtual). The results do not depend on the backend.
//
// The policy decides which pages a request uses; the engine's KvCache manages their content (kv_cache.h). The
// engine itself handles tokens: inputs, samples, and the end of requests.

#ifndef KVTWIN_ENGINE_CPU_CPU_ENGINE_H_
#define KVTWIN_ENGINE_CPU_CPU_ENGINE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/common/request_tokens.h"
#include "engine/cpu/forward.h"
#include "engine/cpu/kv_cache.h"
#include "engine/runtime/forced_outcomes.h"

namespace kvtwin::cpu {

struct CpuEngineConfig {
  EngineId engine{};
  Decoding decoding = Decoding::kForced;
  std::vector<uint32_t> end_tokens{};  // greedy: sampling one of them ends the request
};

class CpuEngine final : public ForcibleSource {
 public:
  // `weights` and `tokens` must outlive this.
  CpuEngine(const CpuEngineConfig& config, const ModelWeights* weights, const TokenIds* tokens,
            std::unique_ptr<KvCache> cache)
      : engine_(config.engine),
        ids_(tokens),
        tokens_(tokens, config.decoding, config.end_tokens),
        forward_(weights),
        cache_(std::move(cache)) {
    cache_->serve({.forward = &forward_,
                   .token = [this](RequestId request, uint32_t at) { return tokens_.input(request, at); },
                   .session = [this](RequestId request) { return ids_->session(request); },
                   .prompt_tokens = [this](RequestId request) { return ids_->prompt_tokens(request); },
                   .output_tokens = [this](RequestId request) { return ids_->output_tokens(request); }});
  }

  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override;
  void notify(const Command& command) override;
  void force_outcomes(const DataOutcomes* given) override { cache_->force_outcomes(given); }

  // Samples of the last step, one per entry that samples, in their order.
  struct Sample {
    RequestId request{};
    uint32_t position = 0;  // of the sampled token
    uint32_t token = 0;     // the token with the largest logit, whatever the decoding
  };
  std::span<const Sample> samples() const { return samples_; }
  std::span<const float> logits() const { return logits_; }  // [samples().size()][vocab]

  // Sums of LayerRecall over all steps and layers.
  struct Recalled {
    uint64_t blocking = 0, background = 0, corrected = 0, heads = 0, chosen = 0;
  };
  const Recalled& recalled() const { return recalled_; }
  // Number of tokens that went through the model.
  uint64_t tokens_computed() const { return tokens_computed_; }
  // Fingerprint of the tokens that all ended requests sampled, independent of the order in which they ended.
  uint64_t samples_digest() const { return tokens_.digest(); }
  KvCache& cache() { return *cache_; }

 private:
  void add_entry(const PlanEntry& entry);
  void take_sample(const PlanEntry& entry, size_t index, DataOutcomes* values);

  const EngineId engine_;
  const TokenIds* const ids_;
  RequestTokens tokens_;
  Forward forward_;
  const std::unique_ptr<KvCache> cache_;
  // State of the current step.
  std::vector<PlanEntry> entries_;
  std::vector<uint32_t> inputs_, sampling_;  // one token per row; rows that sample
  std::vector<Sample> samples_;
  std::vector<float> logits_;
  Recalled recalled_;
  uint64_t tokens_computed_ = 0;
};

// EngineSources combines several engines into one OutcomeSource: it forwards steps and commands to the engine
// that they name.
class EngineSources final : public OutcomeSource {
 public:
  // In engine order; they must outlive this.
  explicit EngineSources(std::vector<OutcomeSource*> engines) : engines_(std::move(engines)) {}

  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override;
  void notify(const Command& command) override;

 private:
  const std::vector<OutcomeSource*> engines_;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_CPU_ENGINE_H_
