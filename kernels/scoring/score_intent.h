// IntentKV's rule (docs/design/methods/intentkv.md#scorer): scores a session's history by a memory of the
// session's queries.
//
// Per layer l and query head j a memory M[l,j] of unit length. One score per token, for all layers and heads:
//   s(p) = 1 / (L Hq) * sum over l, j of softmax over candidates of M[l,j].K[l,h(j),p] / (sqrt(d)
//   temperature)
// Memory of a turn with mean query q (MemoryForm):
//   sum             M <- unit(gamma M + unit(q)): one vector, in which older turns fade
//   max_over_turns  one M = unit(q) for each turn; s(p) is the largest of gamma^age(t) s_t(p) over turns t
// With QueryNorm::kRaw, sum adds q as it is. Mean queries are 6 to 13 long, so the memory is then the newest
// query (cosine 0.997).
// The paper's numbers are reconstructed: docs/design/methods/intentkv.md marks which. M has length 1, so this
// softmax is much flatter than attention. The temperature does not change the ranking within one head; it
// does change the average over heads.
//
// Shapes: q [Hq][n][d] (the query span's rows, post-RoPE), memory [Hq][d] per layer, k [H][C][d] candidates
// only, out [C]. Cost: O(C * Hq * d) per layer and remembered turn. State: memory, per session.

#ifndef KVTWIN_KERNELS_SCORING_SCORE_INTENT_H_
#define KVTWIN_KERNELS_SCORING_SCORE_INTENT_H_

#include <cstdint>
#include <span>

#include "kernels/common/view.h"
#include "kernels/scoring/score_rotation.h"

namespace kvtwin::kernels {

enum class QueryNorm : uint8_t { kUnit, kRaw };
enum class MemoryForm : uint8_t { kSum, kMaxOverTurns };

// Most turns that max_over_turns remembers; the oldest is forgotten first. At gamma 0.9 a turn of this age
// counts by 0.001, and at Qwen3-8B's shape a turn takes 590 KB.
constexpr uint32_t kIntentTurnsMax = 64;

struct IntentSpec {
  float gamma = 0.9f;
  float temperature = 1.0f;
  QueryNorm query_norm = QueryNorm::kUnit;
  MemoryForm memory = MemoryForm::kSum;
  bool memory_pre_rope = false;  // average un-rotated queries and rotate the mean to the current position
};

// The turn's query of one layer: the mean over rows. mean_query [Hq][d]; without rows: zeros.
void intent_query(const HeadsView& q, std::span<float> mean_query);
// The same over un-rotated queries, with the mean rotated to `now`: memory_logical_page=pre_rope.
void intent_query_pre_rope(const RopePlanes& planes, const HeadsView& q,
                           std::span<const uint32_t> q_positions, uint32_t now, std::span<float> mean_query);

// Form `sum`, per head of `dim` values: memory <- unit(gamma * memory + mean_query), where kUnit scales the
// mean query to unit length first. A zero vector stays zero.
void intent_remember(const IntentSpec& spec, uint32_t dim, std::span<const float> mean_query,
                     std::span<float> memory);
// The memory of one turn alone: mode `query`, and each turn of max_over_turns.
void intent_forget(uint32_t dim, std::span<const float> mean_query, std::span<float> memory);

// Form max_over_turns: the factor gamma^age of the scores of a turn that lies `age` turns back, and
// best[p] <- max(best[p], factor * of_turn[p]), where a NaN stays.
float intent_turn_factor(float gamma, uint32_t age);
void intent_best_of_turns(float factor, std::span<const float> of_turn, std::span<float> best);

// Adds one layer's part to out[C], which starts at zero. `layers`: L. Called once per layer; the order of
// calls is the order of additions.
void intent_add_layer(const IntentSpec& spec, uint32_t layers, std::span<const float> memory,
                      uint32_t query_heads, const HeadsView& k, std::span<float> out);

// Scaling of the rule before the residual is added (docs/design/methods/intentkv.md#scorer).
enum class RuleNorm : uint8_t { kNone, kTimesCandidates, kZScore };
void intent_normalise(RuleNorm norm, std::span<float> rule);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SCORING_SCORE_INTENT_H_
