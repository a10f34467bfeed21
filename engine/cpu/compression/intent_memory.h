// IntentMemory stores the query memory of each session (IntentKV's QueryMemory,
// docs/design/methods/intentkv.md#objects, #scorer), and scores tokens by it: one score per token, for all
// layers and heads.
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
  void score(SessionId session, std::span<RankedHead> heads, const KvEntryStore& store) const;

  // The memory by layer, [query_heads * head_dim]; null: the session has none.
  const std::vector<std::vector<float>>* find(SessionId session) const;

 private:
  void absorb(SessionId session, uint32_t layer, std::span<const float> mean);
  void add_layers(const std::vector<std::vector<float>>& memory, std::span<const RankedHead> heads,
                  std::span<const uint32_t> candidates, const KvEntryStore& store,
                  std::vector<float>* scores) const;
  std::vector<float> corrections(const std::vector<std::vector<float>>& memory,
                                 std::span<const RankedHead> heads, std::span<const uint32_t> candidates,
                                 const KvEntryStore& store) const;

  const kernels::ScoreSpec spec_;
  const LlmSpec& llm_;
  const RopeFrequencies& rope_;
  const ScorerWeights& weights_;
  std::map<SessionId, std::vector<std::vector<float>>> memories_;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_COMPRESSION_INTENT_MEMORY_H_
