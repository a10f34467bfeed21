// IntentMemory stores the query memory of each session (IntentKV's QueryMemory,
// docs/design/methods/intentkv.md#objects, #scorer), and scores tokens by it: one score per token, for all
// layers and heads. A session has one memory, or with max_over_turns one for each of its newest
// kIntentTurnsMax turns; a token's score is then the best over turns.
//
// The query of a turn is the mean over the captured query rows of its span. Concurrent requests of one
// session update its memory in the order in which their prompts end.

#ifndef KVTWIN_ENGINE_CPU_COMPRESSION_INTENT_MEMORY_H_
#define KVTWIN_ENGINE_CPU_COMPRESSION_INTENT_MEMORY_H_

#include <map>
#include <span>
#include <vector>

#include "engine/base/units.h"
#include "engine/common/ranking.h"
#include "engine/common/scorer_weights.h"
#include "engine/cpu/compression/kv_entry_store.h"
#include "kernels/scoring/score.h"
#include "models/catalog/rope.h"

namespace kvtwin::cpu {

class IntentMemory {
 public:
  using ByLayer = std::vector<std::vector<float>>;  // [layers][query_heads * head_dim]

  // All arguments but `spec` must outlive it.
  IntentMemory(const kernels::ScoreSpec& spec, const LlmSpec* llm, const RopeFrequencies* rope,
               const ScorerWeights* weights)
      : spec_(spec), llm_(*llm), rope_(*rope), weights_(*weights) {}

  // A prompt of `tokens` tokens has ended; `queries` are by layer.
  void remember(SessionId session, std::span<const Queries> queries, uint32_t tokens);
  // The same with the turn's mean query, [layers][query_heads * head_dim]. REQUIRES: not memory_pre_rope.
  void remember_means(SessionId session, std::span<const float> means);
  void forget(SessionId session) { memories_.erase(session); }

  // Fills the scores of all heads (in order, all layers), which hold the same positions. Forced rows get 0.
  // `query`: Compression::query.
  void score(SessionId session, TokenRange query, std::span<RankedHead> heads,
             const KvEntryStore& store) const;

  // The session's memories, oldest turn first; null: it has none.
  const std::vector<ByLayer>* find(SessionId session) const;
  // The factor of the scores of memory `turn` of `turns`.
  float factor(size_t turn, size_t turns) const {
    return kernels::intent_turn_factor(spec_.intent.gamma, static_cast<uint32_t>(turns - 1 - turn));
  }

 private:
  bool keeps_turns() const {
    return spec_.intent.memory == kernels::MemoryForm::kMaxOverTurns &&
           spec_.intent_mode == kernels::IntentMode::kMemory;
  }
  void begin_turn(SessionId session);
  void absorb(SessionId session, uint32_t layer, std::span<const float> mean);
  std::vector<float> best_of_turns(const std::vector<ByLayer>& turns, std::span<const RankedHead> heads,
                                   std::span<const uint32_t> candidates, const KvEntryStore& store) const;
  std::vector<float> corrections(const ByLayer& memory, TokenRange query, std::span<const RankedHead> heads,
                                 std::span<const uint32_t> candidates, const KvEntryStore& store) const;

  const kernels::ScoreSpec spec_;
  const LlmSpec& llm_;
  const RopeFrequencies& rope_;
  const ScorerWeights& weights_;
  std::map<SessionId, std::vector<ByLayer>> memories_;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_COMPRESSION_INTENT_MEMORY_H_
