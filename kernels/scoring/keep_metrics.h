// Quality of a retained set: hit rate and error of the attention output.
//
// For reports and `inspect-policy`; results are double. docs/design/methods/judge-q.md#hit-rate.

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

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SCORING_KEEP_METRICS_H_
