// IntentScores keeps the memories of sessions (IntentKV, docs/design/methods/intentkv.md#scorer) and scores
// tokens by them on the device: the rule, one score per token for all heads.
//
// Memories are on the host (cpu::IntentMemory, 4 bytes per element of a layer's queries). A prompt that ends
// copies the means of its query rows to the host; a compression uploads its session's memory. The residual
// corrects the rule on the host (host_scores.h).

#ifndef KVTWIN_ENGINE_CUDA_COMPRESSION_INTENT_SCORES_H_
#define KVTWIN_ENGINE_CUDA_COMPRESSION_INTENT_SCORES_H_

#include <functional>

#include "engine/cpu/compression/intent_memory.h"
#include "engine/cuda/compression/device_scorer.h"
#include "kernels/scoring/cuda/score_intent_cuda.h"

namespace kvtwin::cuda {

class IntentScores {
 public:
  // All but `spec` must outlive it.
  IntentScores(const kernels::ScoreSpec& spec, const LlmSpec* llm, const cpu::ScorerWeights* weights)
      : spec_(spec), llm_(*llm), rope_(rope_frequencies(*llm)), memory_(spec, llm, &rope_, weights) {}

  // Updates the memory at the end of a prompt of `tokens` tokens, whose query rows `scores` has captured.
  // Waits for the stream.
  void remember(SessionId session, const DeviceScorer& scores, const DeviceScorer::State& captured,
                uint32_t tokens, cudaStream_t stream);
  void forget(SessionId session) { memory_.forget(session); }
  const cpu::IntentMemory& memory() const { return memory_; }
  // The definition's normalisation of the rule (RuleNorm) is omitted: it does not change the order.
  bool on_device() const { return spec_.scorer->device != kernels::DeviceScores::kHost; }

  // Scores the ranked KV entries. `what` locates them; its memory and the sizes of the LLM are filled in
  // here. Row scores go to scores[c * stride + row] for c < copies. `open(layer)`, if given, makes one
  // layer's KV entries readable, in place of the previous layer's.
  struct Target {
    float* scores = nullptr;
    uint64_t stride = 0;
    uint32_t copies = 1;
  };
  void score(SessionId session, IntentScoreArgs what, const Target& to,
             const std::function<void(uint32_t layer)>& open, cudaStream_t stream);

 private:
  uint64_t width() const { return uint64_t{llm_.query_heads} * llm_.head_dim; }

  const kernels::ScoreSpec spec_;
  const LlmSpec& llm_;
  const RopeFrequencies rope_;
  cpu::IntentMemory memory_;
  Buffer numbers_, numbers_host_;  // for one memory
  Buffer workspace_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_COMPRESSION_INTENT_SCORES_H_
