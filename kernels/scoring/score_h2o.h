// H2O (arXiv 2306.14048, docs/design/methods/uniform.md#h2o): a KV entry is worth the attention it has
// gathered so far.
//
// (a) online: accumulators A [H][T] grow by one row per query, and the heavy hitters stay with the most
// recent; what is dropped never returns. (b) over a prompt: the same sums once, from all query rows; or
// divided by the number of rows that could see the KV entry (kvpress's ObservedAttention), which takes away
// the advantage of early KV entries. The third thing called H2O, a window of queries, is score_window.h's
// kH2oWindow.
//
// The G query heads of a KV head are averaged (the original has one each), so A grows by 1 per row in all.
// Cost: O(Hq * T * d) per query row; memory O(H * T).

#ifndef KVTWIN_KERNELS_SCORING_SCORE_H2O_H_
#define KVTWIN_KERNELS_SCORING_SCORE_H2O_H_

#include <cstdint>
#include <span>

#include "kernels/common/score_math.h"
#include "kernels/common/view.h"
#include "kernels/select/select.h"

namespace kvtwin::kernels {

// accumulators[h][p] += mean over h's query heads, sum over the rows of `attention_scores`, of the
// probability of p. The rows are new ones: each query is added once. Each row adds 1 in all to each head that
// it sees keys of.
void h2o_accumulate(const AttentionScores& attention_scores, ScoreView accumulators);

// Of one head's accumulators: the last `recent` rows, and the `heavy` best of the others. Everything, when
// there are no more rows than heavy + recent. The caller moves the accumulators of these rows along.
RowSet h2o_keep(std::span<const float> accumulators, uint32_t heavy, uint32_t recent);

// A budget in two: recent = max(floor, half), at most all of it; heavy = the rest
// (docs/design/methods/uniform.md#h2o: 0.5 / 0.5 with a recent floor of 64 is IntentKV's ratio mode as
// reconstructed).
struct HeavyRecent {
  uint32_t heavy = 0;
  uint32_t recent = 0;
};
HeavyRecent split_heavy_recent(uint32_t budget, uint32_t recent_floor);

enum class ObservedForm : uint8_t {
  kSum,     // KVCache-Factory: column sums; the last `window` rows stay and their queries still count
  kPerRow,  // kvpress ObservedAttention: divided by the number of rows that can see the KV entry
};

// Over a whole prompt: `attention_scores` has all its queries. The last `window` rows get kMustStay.
void score_observed(ObservedForm form, const AttentionScores& attention_scores, uint32_t window,
                    ScoreView out);
// The same, from sums that h2o_accumulate() made; `queries_end`: one past the last query's position.
void finish_observed(ObservedForm form, Positions positions, uint32_t queries_end, uint32_t window,
                     ScoreView scores);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SCORING_SCORE_H2O_H_
