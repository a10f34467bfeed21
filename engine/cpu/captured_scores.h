// Scores of a captured context: score_captured() prepares the inputs of kernels/scoring/score.h from a
// CapturedPass.

#ifndef KVTWIN_ENGINE_CPU_CAPTURED_SCORES_H_
#define KVTWIN_ENGINE_CPU_CAPTURED_SCORES_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/prompt_spans.h"
#include "engine/common/scorer_weights.h"
#include "engine/cpu/captured_pass.h"
#include "kernels/scoring/score.h"

namespace kvtwin::cpu {

struct ScoredContext {
  std::span<const uint32_t> tokens;  // of the context: rows [0, tokens.size()) of the pass
  // judge_q in oracle mode: the response rows after the context replace the soft tokens; 0: soft tokens.
  uint32_t response_tokens = 0;
  // KVzip: the instruction before each repeated part, the length of a part, and how much of the part before
  // is repeated with it.
  std::span<const uint32_t> instruction{};
  uint32_t repeat_tokens = 2'048, repeat_tail = 8;
  TokenRange query{};                             // IntentKV: rows of the query span; empty: the last 64
  uint32_t retained = 0;                          // CriticalKV: the budget of a head
  const ModelWeights* weights = nullptr;          // CriticalKV
  const ScorerWeights* scorer_weights = nullptr;  // FastKVzip, TrimKV, Judge Q's soft tokens
};

// Returns one sentence that explains why a captured context is not enough to score with this scorer, and a
// remedy; nullopt: it is enough.
std::optional<std::string> cannot_score(const kernels::ScorerDefinition& scorer);

// The largest number of rows that KVzip or Judge Q appends to the context at once: room that a pass must
// have. `hidden`: the model's width.
uint32_t probe_tokens_max(const kernels::ScorerDefinition& scorer, const ScoredContext& context,
                          uint32_t hidden);

// Returns scores [layers][kv_heads][tokens]; a higher score is retained first. Scorers with one score per
// token assign it to all heads. RaaS has no decode steps here, so its scores are those of a prompt; H2O's are
// those of all rows of the prompt. REQUIRES: !cannot_score(*spec.scorer); pass->tokens() == tokens +
// response_tokens; for KVzip no response rows; room for probe_tokens_max(); the fields of `context` that the
// scorer reads. The pass is unchanged afterwards.
std::vector<float> score_captured(const kernels::ScoreSpec& spec, const ScoredContext& context,
                                  CapturedPass* pass);

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_CAPTURED_SCORES_H_
