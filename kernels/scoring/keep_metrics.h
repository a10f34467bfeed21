// Quality of a retained set: hit rate, error of the attention output, and stability of a ranking.
//
// For reports and `inspect-policy`; results are double. docs/design/methods/judge-q.md#hit-rate,
// docs/design/methods/tangram.md#numbers (rank stability).

#ifndef KVTWIN_KERNELS_SCORING_KEEP_METRICS_H_
#define KVTWIN_KERNELS_SCORING_KEEP_METRICS_H_

#include <cstdint>
#include <span>

#include "kernels/common/score_math.h"
#include "kernels/common/view.h"
#include "kernels/select/select.h"

namespace kvtwin::kernels {

// |retained intersected with reference| and |reference|, of one layer and head. Both ascend.
struct HitCount {
  uint64_t hits = 0;
  uint64_t reference = 0;
};
HitCount count_hits(std::span<const uint32_t> retained, std::span<const uint32_t> reference);

// Critical-KV hit rate: mean over (layer, head, sample) of hits / reference. Entries without a reference are
// left out; 0 if none is left.
double hit_rate(std::span<const HitCount> counts);
// The hit rate of random selection: retained / rows. A scorer's lift is its hit rate over this.
double random_hit_rate(uint64_t retained, uint64_t rows);

// Attention output o = softmax(q K^T / sqrt(d)) V of query head j, row i, over the rows `retained`
// (ascending) of its KV head; empty `retained` of a non-empty context gives zeros. out [dv]. fp64 inside.
void attention_output(const AttentionScores& attention_scores, const HeadsView& v, uint32_t j, uint32_t i,
                      std::span<const uint32_t> retained, std::span<double> out);

// Error over all query heads and rows of `attention_scores`: the output with retained[h] against the output
// with all rows.
struct OutputError {
  double max_abs = 0;   // largest difference of one value
  double relative = 0;  // sqrt(sum of squared differences / sum of squared full outputs)
};
OutputError output_error(const AttentionScores& attention_scores, const HeadsView& v,
                         std::span<const RowSet> retained);

// Spearman's rank correlation; equal values share the mean of their ranks. 0 if one side is constant.
// REQUIRES: equal lengths.
double spearman(std::span<const double> a, std::span<const double> b);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SCORING_KEEP_METRICS_H_
