// Expected Attention (kvpress; docs/design/methods/uniform.md#expected-attention): the expected attention of
// future queries to a key.
//
// Queries of the next F positions are assumed to be normal, with the mean and covariance of the pre-RoPE
// queries seen so far (without the first four, which are outliers), rotated by the mean rotation R of those
// positions. The expected exponential of a normal logit has a closed form:
//   logit[j,p] = (R mu).K[p] / sqrt(d) + K[p]^T (R Sigma R^T) K[p] / (2 d)
//   s[h,p]     = (mean over h's query heads of softmax over p of logit + eps) * |V[h,p]|
//
// Shapes: q_hat [Hq][n][d] pre-RoPE, k [H][T][d] post-RoPE, v [H][T][d], out [H][T].
// The softmax is over the rows at positions >= sink; the rows before must be retained.
// Cost: O(Hq * n * d^2) for the covariance, O(Hq * T * d^2) for the logits. No state.

#ifndef KVTWIN_KERNELS_SCORING_SCORE_EXPECTED_H_
#define KVTWIN_KERNELS_SCORING_SCORE_EXPECTED_H_

#include <cstdint>
#include <vector>

#include "kernels/common/view.h"
#include "kernels/scoring/score_rotation.h"

namespace kvtwin::kernels {

struct ExpectedSpec {
  uint32_t sink = 4;       // rows that must be retained
  uint32_t first = 4;      // query rows left out as outliers, if more were seen
  uint32_t future = 512;   // F
  bool covariance = true;  // the second term
  bool value_norm = true;  // the factor |V|
  float eps = 0.0f;        // kvpress 0; TANGRAM 0.01 (safe with per-layer budgets only: |V| differs by layer)
  bool rotate_keys = false;  // rotates each key by R^T instead of Sigma by R: the same sum at lower cost
};

// Mean and covariance of one query head.
struct QueryMoments {
  std::vector<float> mean;        // [d]
  std::vector<float> covariance;  // [d][d], divided by n; empty: not computed
};
QueryMoments query_moments(const HeadsView& q_hat, uint32_t j, uint32_t first, bool covariance);

// logits[T] of one query head against the keys of `head`.
void expected_logits(const ExpectedSpec& spec, const QueryMoments& moments, const PlaneMap& mean_turn,
                     const HeadsView& k, uint32_t head, std::vector<float>* logits);

// `tokens`: N, the position of the next query.
void score_expected(const ExpectedSpec& spec, const RopePlanes& planes, const HeadsView& q_hat,
                    const HeadsView& k, const HeadsView& v, Positions positions, uint32_t tokens,
                    ScoreView out);

// Computes pre-RoPE queries from cached post-RoPE ones; q_positions [n]; out contiguous [Hq][n][d].
void unrotate_queries(const RopePlanes& planes, const HeadsView& q, std::span<const uint32_t> q_positions,
                      std::span<float> out);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SCORING_SCORE_EXPECTED_H_
