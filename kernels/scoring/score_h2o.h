// H2O (arXiv 2306.14048, docs/design/methods/uniform.md#h2o): a KV entry scores the attention that it has
// received so far.
//
// (a) Online: accumulators A [H][T] are updated with every query; the heavy hitters and the most recent
// entries are retained, and dropped entries never return. (b) Over a prompt: the same sums from all query
// rows, or these divided by the number of rows that see the KV entry (kvpress's ObservedAttention), which
// removes the advantage of early KV entries. A third method called H2O, a window of queries, is
// score_window.h's kH2oWindow.
//
// The G query heads of a KV head are averaged (the original has one each), so each row adds 1 in all to A.
// Cost: O(Hq * T * d) per query row; memory O(H * T).

#ifndef KVTWIN_KERNELS_SCORING_SCORE_H2O_H_
#define KVTWIN_KERNELS_SCORING_SCORE_H2O_H_

#include <cstdint>
#include <span>

#include "kernels/common/score_math.h"
#include "kernels/common/view.h"
#include "kernels/select/select.h"

namespace kvtwin::kernels {

// accumulators[h][p] += the probability of p, averaged over h's query heads and summed over the rows of
// `attention_scores`. Rows must be new: each query is added once. A row adds 1 in all to each head of which
// it sees keys.
void h2o_accumulate(const AttentionScores& attention_scores, ScoreView accumulators);

enum class ObservedForm : uint8_t {
  kSum,     // KVCache-Factory: column sums; the last `window` rows are retained, their queries count
  kPerRow,  // kvpress ObservedAttention: divided by the number of rows that see the KV entry
};

// Scores a whole prompt: `attention_scores` has all its queries. The last `window` rows get kMustStay.
void score_observed(ObservedForm form, const AttentionScores& attention_scores, uint32_t window,
                    ScoreView out);
// The same from sums of h2o_accumulate(); `queries_end`: one past the last query's position.
void finish_observed(ObservedForm form, Positions positions, uint32_t queries_end, uint32_t window,
                     ScoreView scores);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SCORING_SCORE_H2O_H_
