// Scores from a trained gate on the hidden state: FastKVzip (docs/design/methods/uniform.md#kvzip) and TrimKV
// (docs/design/methods/uniform.md#trimkv).
//
// A token's gate depends on its own hidden state only: it is prefix-closed and independent of the chunking.
// Shapes: x [T][D] (one head of a HeadsView: rows are tokens), out [H][T].

#ifndef KVTWIN_KERNELS_SCORING_SCORE_GATE_H_
#define KVTWIN_KERNELS_SCORING_SCORE_GATE_H_

#include <cstdint>
#include <span>

#include "kernels/common/view.h"

namespace kvtwin::kernels {

// FastKVzip, one layer. Row-major. Gate vectors are 16 wide.
//   q = RMSNorm(Wq x + bq), k = RMSNorm(Wk x), both per head over the 16
//   z = k.q / 4 + bias[h,g];  z0_t = k_base[h,t].q / 4
//   s[h] = mean over g of 1 / (1 + sum over t < 16 of exp(z0_t - z))
// Cost: O(D * 16 * (Hq + H)) per token.
struct FastKvzipGate {
  static constexpr uint32_t kWidth = 16;
  uint32_t heads = 0;             // H
  uint32_t group = 1;             // G
  uint32_t hidden = 0;            // D
  std::span<const float> wq;      // [H * G * 16][D]
  std::span<const float> bq;      // [H * G * 16]
  std::span<const float> q_norm;  // [16]
  std::span<const float> wk;      // [H * 16][D]
  std::span<const float> k_norm;  // [16]
  std::span<const float> k_base;  // [H][16][16]
  std::span<const float> bias;    // [H][G]
  float norm_eps = 1e-6f;
};
void score_fastkvzip(const FastKvzipGate& gate, const HeadsView& x, ScoreView out);

// TrimKV, one layer: log beta[h] = logsigmoid(W2 act(W1 x + b1) + b2)[h], stored when the token is created.
// b2 starts large, so that beta starts near 1. Cost: O(D * width) per token.
enum class GateActivation : uint8_t { kSilu, kRelu, kGelu };
struct TrimKvGate {
  uint32_t heads = 0;   // H
  uint32_t hidden = 0;  // D
  uint32_t width = 0;
  GateActivation activation = GateActivation::kSilu;
  std::span<const float> w1;  // [width][D]
  std::span<const float> b1;  // [width]
  std::span<const float> w2;  // [H][width]
  std::span<const float> b2;  // [H]
};
void trimkv_log_beta(const TrimKvGate& gate, const HeadsView& x, ScoreView out);

// score(p | t) = (t - p) * log beta[h,p], + log|K| with `key_norm` (the released "knorm_alpha"); t = tokens
// seen
// + 1. log_beta [H][T]. The last `window` rows must be retained. k may be empty without key_norm.
struct TrimKvSpec {
  uint32_t window = 0;
  bool key_norm = false;
};
void score_trimkv(const TrimKvSpec& spec, ScoreView log_beta, const HeadsView& k, Positions positions,
                  uint32_t tokens_seen, ScoreView out);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SCORING_SCORE_GATE_H_
