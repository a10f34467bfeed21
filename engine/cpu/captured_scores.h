// What scorers say of a captured context: the inputs that kernels/scoring/score.h asks for, from
// CapturedPass.

#ifndef KVTWIN_ENGINE_CPU_CAPTURED_SCORES_H_
#define KVTWIN_ENGINE_CPU_CAPTURED_SCORES_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/common/scorer_weights.h"
#include "engine/cpu/captured_pass.h"
#include "kernels/scoring/score.h"

namespace kvtwin::cpu {

struct ScoredContext {
  std::span<const uint32_t> tokens;  // of the context: rows [0, tokens.size()) of the pass
  // judge_q in oracle mode: the rows behind the context are the response's, and ask instead of soft tokens;
  // 0: soft tokens do.
  uint32_t response_tokens = 0;
  // KVzip: what stands before each repeated piece, how long pieces are, and how much of the piece before is
  // repeated.
  std::span<const uint32_t> instruction{};
  uint32_t repeat_tokens = 2'048, repeat_tail = 8;
  uint32_t span_rows = 64;                        // IntentKV: the last rows that stand for the query span
  const ModelWeights* weights = nullptr;          // CriticalKV
  const ScorerWeights* scorer_weights = nullptr;  // FastKVzip, TrimKV, Judge Q's soft tokens
};

// A sentence that says why a captured context does not tell what this scorer thinks, and the way out;
// nullopt: it does.
std::optional<std::string> cannot_score(kernels::ScorerKind kind);

// Rows that KVzip or Judge Q adds behind the context at once: room that a pass must have. `hidden`: the
// model's.
uint32_t probe_tokens_max(kernels::ScorerKind kind, const ScoredContext& context, uint32_t hidden);
// Whether the pass must keep hidden rows for this scorer.
bool needs_hidden(kernels::ScorerKind kind);

// Scores [layers][kv_heads][tokens], higher means keep. Scorers with one score per token give it to all
// heads. RaaS has no steps behind it: its scores are those of a prompt. H2O's are those of all rows of the
// prompt. REQUIRES: !cannot_score(spec.kind); pass->tokens() == tokens + response_tokens; for KVzip no
// response rows; room for probe_tokens_max(); what the scorer reads of `context`. The pass is left as it was.
std::vector<float> score_captured(const kernels::ScoreSpec& spec, const ScoredContext& context,
                                  CapturedPass* pass);

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_CAPTURED_SCORES_H_
