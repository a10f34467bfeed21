// CriticalKV (arXiv 2502.03805, kvpress; docs/design/methods/uniform.md#head-patterns): weighs attention by
// the magnitude of what a KV entry contributes to the output.
//
// A part of the budget goes to the best KV entries by a base score (they get kMustStay). The others score
// (s + 1e-4) * |W_o V|_1, the L1 norm of the KV entry's contribution to the layer's output, averaged over the
// G query heads that read it. Only candidates are scored: rows that the base scorer forces keep kMustStay and
// use no budget.
//
// Shapes: v [H][T][d], w_o [D][Hq * d] row-major, scores [H][T] in place. Cost: O(Hq * T * d * D).

#ifndef KVTWIN_KERNELS_SCORING_SCORE_CRITICAL_H_
#define KVTWIN_KERNELS_SCORING_SCORE_CRITICAL_H_

#include <cstdint>
#include <span>

#include "kernels/common/view.h"

namespace kvtwin::kernels {

struct OutputProjection {
  uint32_t hidden = 0;       // D
  uint32_t query_heads = 0;  // Hq
  std::span<const float> w;  // [D][Hq * d]
};

// norms[H][T]: mean over the query heads j of h of |W_o[:, j] V|_1.
void output_norms(const OutputProjection& projection, const HeadsView& v, ScoreView norms);

// `first`: KV entries per head that the base score alone chooses; kvpress: half of the budget.
void score_critical(const OutputProjection& projection, const HeadsView& v, uint32_t first, ScoreView scores);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SCORING_SCORE_CRITICAL_H_
