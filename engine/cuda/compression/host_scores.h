// HostScores computes on the host the scores that have no kernel: Expected Attention and CriticalKV. It runs
// the definitions (cpu::KvEntryScorer, cpu::IntentMemory) on the GPU's bf16 KV entries and queries.
//
// Every compression copies the keys (and values) that it ranks to the host, so it is slow.

#ifndef KVTWIN_ENGINE_CUDA_COMPRESSION_HOST_SCORES_H_
#define KVTWIN_ENGINE_CUDA_COMPRESSION_HOST_SCORES_H_

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/cpu/compression/intent_memory.h"
#include "engine/cpu/compression/kv_entry_scorer.h"

namespace kvtwin::cuda {

class HostScores {
 public:
  // All must outlive it. `intents`: the sessions' memories, for scorers that use them.
  HostScores(const cpu::ScorerConfig& config, const ModelWeights* model, const cpu::ScorerWeights* weights,
             const cpu::RequestTableShape* shape, const cpu::IntentMemory* intents)
      : config_(config), model_(*model), weights_(*weights), shape_(*shape), intents_(intents) {}

  // Keys and values of all rows of one layer's heads, [heads][stride][head_dim].
  using Fetch = std::function<void(uint32_t layer, const float** keys, const float** values)>;
  // Fills the scores of all heads, which are in order of layers. `expected`, by layer: KV entries that a head
  // retains in addition to the forced ones. `query`: Compression::query.
  void score(SessionId session, TokenRange query, std::span<cpu::RankedHead> heads, uint32_t tokens,
             const cpu::StepRows& rows, std::span<const uint32_t> expected,
             const std::vector<cpu::Queries>& queries, uint32_t stride, const Fetch& fetch);

 private:
  const cpu::ScorerConfig config_;
  const ModelWeights& model_;
  const cpu::ScorerWeights& weights_;
  const cpu::RequestTableShape& shape_;
  const cpu::IntentMemory* const intents_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_COMPRESSION_HOST_SCORES_H_
