// IntentKV's learned residual (docs/design/methods/intentkv.md#scorer, equations 4 to 6): a small head that
// corrects the rule.
//
//   kbar_p = mean over layers and query heads of K[l,h(j),p];  mbar = mean over l, j of M[l,j]
//   x_p    = [kbar_p ; mbar ; kbar_p * mbar]                                                  [3d]
//   c_p    = multi-head attention (4 heads, width d) of W_q x_p over the query span's kbar    [d]
//   f_p    = W_2 gelu(W_1 [x_p ; c_p] + b_1) + b_2
//   s(p)   = rule(p) + clip(gain, 0, gain_max) * f_p
// Initially W_2 = 0 and b_2 = 0, so s ranks as the rule does. For d = 128 there are 230,402 parameters:
// W_q 49,280 + W_k, W_v, W_o 3 * 16,512; MLP 131,328 + 257; gain 1.
//
// Shapes: kbar [C][d], span [n][d] (live query-span tokens), mbar [d], out [C].
// Cost: O(C * (7 d + 256 * 4 d)).

#ifndef KVTWIN_KERNELS_SCORING_SCORE_INTENT_RESIDUAL_H_
#define KVTWIN_KERNELS_SCORING_SCORE_INTENT_RESIDUAL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/common/view.h"

namespace kvtwin::kernels {

struct IntentResidual {
  uint32_t dim = 128;  // d, divisible by heads
  uint32_t heads = 4;
  uint32_t hidden = 256;
  std::vector<float> wq, bq;  // [d][3d], [d]
  std::vector<float> wk, bk;  // [d][d], [d]
  std::vector<float> wv, bv;  // [d][d], [d]
  std::vector<float> wo, bo;  // [d][d], [d]
  std::vector<float> w1, b1;  // [hidden][4d], [hidden]
  std::vector<float> w2;      // [hidden]
  float b2 = 0.0f;
  float gain = 1.0f;
  float gain_max = 1.0f;
  bool cross_attention = true;  // false: c_p = 0 (the paper's ablation)
};

// Initial weights: uniform in +-1/sqrt(inputs) from a counter-based draw; the last layer is zero.
IntentResidual make_intent_residual(uint32_t dim, uint64_t seed);

// Adds one layer's part of kbar to sum [rows][d]: the sum over h of G * K[h,p] / (L * Hq) = K[h,p] / (L * H).
void intent_add_keys(uint32_t layers, const HeadsView& k, std::span<float> sum);
// Adds one layer's memory [Hq][d] to mbar [d] in the same way.
void intent_add_memory(uint32_t layers, uint32_t query_heads, std::span<const float> memory,
                       std::span<float> sum);

// f_p of every candidate. kbar and span are contiguous: [C][d], [n][d].
void intent_corrections(const IntentResidual& head, std::span<const float> kbar, std::span<const float> mbar,
                        std::span<const float> span, std::span<float> out);
// scores += clip(gain, 0, gain_max) * corrections.
void intent_correct(const IntentResidual& head, std::span<const float> corrections, std::span<float> scores);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SCORING_SCORE_INTENT_RESIDUAL_H_
