// IntentKV's rule (docs/design/methods/intentkv.md#scorer): scores a session's history by a memory of the
// session's queries.
//
// Per layer l and query head j a memory M[l,j] of unit length: M <- gamma M + mean of this turn's queries,
// then normalised. One score per token, for all layers and heads:
//   s(p) = 1 / (L Hq) * sum over l, j of softmax over candidates of M[l,j].K[l,h(j),p] / (sqrt(d)
//   temperature)
// The paper's numbers are reconstructed: docs/design/methods/intentkv.md marks which. Real queries have
// lengths of 8 to 30 and M has length 1, so this softmax is much flatter than attention. The temperature does
// not change the ranking within one head; it does change the average over heads.
//
// Shapes: q [Hq][n][d] (the query span's rows, post-RoPE), memory [Hq][d] per layer, k [H][C][d] candidates
// only, out [C]. Cost: O(C * Hq * d) per layer. State: memory, per session.

#ifndef KVTWIN_KERNELS_SCORING_SCORE_INTENT_H_
#define KVTWIN_KERNELS_SCORING_SCORE_INTENT_H_

#include <cstdint>
#include <span>

#include "kernels/common/view.h"
#include "kernels/scoring/score_rotation.h"

namespace kvtwin::kernels {

struct IntentSpec {
  float gamma = 0.9f;
  float temperature = 1.0f;
  bool memory_pre_rope = false;  // average un-rotated queries and rotate the mean to the current position
};

// The turn's query of one layer: the mean over rows. mean_query [Hq][d]; without rows: zeros.
void intent_query(const HeadsView& q, std::span<float> mean_query);
// The same over un-rotated queries, with the mean rotated to `now`: memory_logical_page=pre_rope.
void intent_query_pre_rope(const RopePlanes& planes, const HeadsView& q,
                           std::span<const uint32_t> q_positions, uint32_t now, std::span<float> mean_query);

// memory <- unit(gamma * memory + mean_query), per head of `dim` values. A zero vector stays zero.
void intent_remember(float gamma, uint32_t dim, std::span<const float> mean_query, std::span<float> memory);
// Mode `query`: the memory is this turn's query alone, normalised the same way.
void intent_forget(uint32_t dim, std::span<const float> mean_query, std::span<float> memory);

// Adds one layer's part to out[C], which starts at zero. `layers`: L. Called once per layer; the order of
// calls is the order of additions.
void intent_add_layer(const IntentSpec& spec, uint32_t layers, std::span<const float> memory,
                      uint32_t query_heads, const HeadsView& k, std::span<float> out);

// Scaling of the rule before the residual is added (docs/design/methods/intentkv.md#scorer).
enum class RuleNorm : uint8_t { kNone, kTimesCandidates, kZScore };
void intent_normalise(RuleNorm norm, std::span<float> rule);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SCORING_SCORE_INTENT_H_
