// IntentScores keeps what sessions ask for (IntentKV, docs/design/methods/intentkv.md#scorer), and scores
// tokens with it: the rule, one score per token for all heads, on the device.
//
// Memories lie on the host (cpu::IntentMemory, 4 bytes for each number of a layer's queries): a prompt that
// ends fetches the means of its query rows, a compression sends its session's memory. The residual corrects
// the rule on the host (host_scores.h).

#ifndef KVTWIN_ENGINE_CUDA_COMPRESSION_INTENT_SCORES_H_
#define KVTWIN_ENGINE_CUDA_COMPRESSION_INTENT_SCORES_H_

#include <functional>

#include "engine/cpu/compression/intent_memory.h"
#include "engine/cuda/compression/device_scorer.h"
#include "kernels/scoring/cuda/score_intent_cuda.h"

namespace kvtwin::cuda {

class IntentScores {
 public:
  // All must outlive it but `spec`.
  IntentScores(const kernels::ScoreSpec& spec, const LlmSpec* llm, const cpu::ScorerWeights* weights)
      : spec_(spec), llm_(*llm), rope_(rope_frequencies(*llm)), memory_(spec, llm, &rope_, weights) {}

  // A prompt of `tokens` tokens has ended, whose query rows `scores` has captured. Waits for the stream.
  void remember(SessionId session, const DeviceScorer& scores, const DeviceScorer::State& captured,
                uint32_t tokens, cudaStream_t stream);
  void forget(SessionId session) { memory_.forget(session); }
  const cpu::IntentMemory& memory() const { return memory_; }
  // The definition's normalisation of the rule (RuleNorm) is left out: it changes no order.
  bool on_device() const { return spec_.kind == kernels::ScorerKind::kIntentRule; }

  // KV entries that are ranked: `what` says where, memory and sizes of the LLM aside. Rows' scores at
  // scores[c * stride + row] for c < copies. `open(layer)`, if there is one, makes one layer's KV entries
  // readable; the next layer's take their place.
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
  Buffer numbers_, numbers_host_;  // of one memory
  Buffer workspace_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_COMPRESSION_INTENT_SCORES_H_
