// IntentScores keeps the memories of sessions (IntentKV, docs/design/methods/intentkv.md#scorer) and scores
// tokens by them on the device: the rule and its learned residual, one score per token for all heads.
//
// Memories are on the host (cpu::IntentMemory, 4 bytes per element of a layer's queries). A prompt that ends
// copies the means of its query rows to the host; a compression uploads its session's memory.

#ifndef KVTWIN_ENGINE_CUDA_COMPRESSION_INTENT_SCORES_H_
#define KVTWIN_ENGINE_CUDA_COMPRESSION_INTENT_SCORES_H_

#include <functional>

#include "engine/cpu/compression/intent_memory.h"
#include "engine/cuda/compression/device_scorer.h"
#include "kernels/scoring/cuda/intent_residual_cuda.h"
#include "kernels/scoring/cuda/score_intent_cuda.h"

namespace kvtwin::cuda {

class IntentScores {
 public:
  // All but `spec` must outlive it.
  IntentScores(const kernels::ScoreSpec& spec, const LlmSpec* llm, const cpu::ScorerWeights* weights);

  // Updates the memory at the end of a prompt of `tokens` tokens, whose query rows `scores` has captured.
  // Waits for the stream.
  void remember(SessionId session, const DeviceScorer& scores, const DeviceScorer::State& captured,
                uint32_t tokens, cudaStream_t stream);
  void forget(SessionId session) { memory_.forget(session); }
  const cpu::IntentMemory& memory() const { return memory_; }
  // Room for `rows` KV entries that are ranked, and for the memory of one turn.
  void reserve(uint32_t rows);
  bool on_device() const { return spec_.scorer->device != kernels::DeviceScores::kHost; }

  // Scores the ranked KV entries. `what` locates them; its memory and the sizes of the LLM are filled in
  // here. The rule alone is not normalised (RuleNorm): that does not change the order. Row scores go to
  // scores[c * stride + row] for c < copies. `open(layer)`, if given, makes one layer's KV entries readable,
  // in place of the previous layer's.
  struct Target {
    float* scores = nullptr;
    uint64_t stride = 0;
    uint32_t copies = 1;
  };
  // What the residual needs besides: the rows of the query span, and how many rows are not forced.
  struct Asked {
    RowRange span;
    uint32_t candidates = 0;
  };
  void score(SessionId session, IntentScoreArgs what, const Asked& asked, const Target& to,
             const std::function<void(uint32_t layer)>& open, cudaStream_t stream);

 private:
  bool corrects() const { return spec_.scorer->weights == kernels::TrainedWeights::kResidual; }
  IntentScoreArgs sized(IntentScoreArgs what);
  void reserve_numbers(uint64_t turns);
  void send_memory(const std::vector<cpu::IntentMemory::ByLayer>& turns, cudaStream_t stream);
  IntentResidualArgs residual_args(const IntentScoreArgs& rule, const Asked& asked, const float* mbar);
  uint64_t width() const { return uint64_t{llm_.query_heads} * llm_.head_dim; }

  const kernels::ScoreSpec spec_;
  const LlmSpec& llm_;
  const RopeFrequencies rope_;
  const kernels::IntentResidual& residual_;
  cpu::IntentMemory memory_;
  Buffer numbers_, numbers_host_;  // a session's memories, then the mean of the newest (mbar)
  Buffer residual_on_, workspace_, residual_workspace_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_COMPRESSION_INTENT_SCORES_H_
