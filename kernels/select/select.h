// Selects the retained KV entries: a total order on scores, exact counts, forced sets, and counts by level.
//
// The total order (docs/design/methods/conventions.md#selection) has no ties: by score, then the larger
// logical position, then (where heads are ranked together) the smaller head. So exactly k KV entries are
// retained, the same ones in every backend. NaN ranks as -inf and is counted; -inf is chosen only after every
// finite score.
//
// Retained sets are row indices, ascending. Rows must ascend by position within a head; row index and
// position then give the same order. Sources: docs/design/methods/conventions.md#selection, #invariants,
// docs/design/methods/tangram.md#levels; AdaKV (arXiv 2407.11550) and kvpress for the two forms of 2.1; KVzip
// for the threshold form. Selection is O(rows log rows) per head.

#ifndef KVTWIN_KERNELS_SELECT_SELECT_H_
#define KVTWIN_KERNELS_SELECT_SELECT_H_

#include <bit>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/common/view.h"

namespace kvtwin::kernels {

// Keys in the total order; the largest is retained first.
inline uint64_t order_key(float score, uint32_t position) {
  if (score != score) score = -std::numeric_limits<float>::infinity();
  const uint32_t bits = std::bit_cast<uint32_t>(score);
  const uint32_t ordered = bits ^ ((bits >> 31) != 0 ? 0xFFFFFFFFu : 0x80000000u);
  return (uint64_t{ordered} << 32) | position;
}

// A set of rows: sorted, distinct row indices below the number of rows.
using RowSet = std::vector<uint32_t>;

// Selects `forced` and the `k` best other rows. *nan, if given, is incremented by the NaN scores among the
// latter. The result ascends and has min(rows, |forced| + k) rows. REQUIRES: `forced` ascends, below rows.
RowSet select_rows(std::span<const float> scores, std::span<const uint32_t> forced, uint32_t k,
                   uint64_t* nan = nullptr);

// The forced set [0, sink) and the last `window` of `rows`.
RowSet sink_and_window(uint32_t rows, uint32_t sink, uint32_t window);

// Input of selection over several heads: `scores` of the candidates (without forced KV entries, or with those
// at kMustStay) and their positions.
struct Ranked {
  ScoreView scores;     // heads of one layer, or of all layers in order (l * H + h)
  Positions positions;  // positions of the rows; used for ties only
};

// Per layer or across layers, per head (docs/design/methods/tangram.md#levels): how many of the `kv_entries`
// best KV entries of all heads are in each head. Sums to min(kv_entries, heads * rows). They are the best
// counts[h] rows of each head.
std::vector<uint32_t> count_flattened(const Ranked& ranked, uint64_t kv_entries, uint64_t* nan = nullptr);

// Clusters (docs/design/methods/tangram.md#levels): a cluster's score at row i is the largest of its members'
// (NaN as -inf); the `kv_entries` best (cluster, row) pairs are retained; the count is the length of every
// member. cluster_of: [heads], values below `clusters`. Ties: larger position, then smaller cluster. Returns
// [clusters].
std::vector<uint32_t> count_clustered(const Ranked& ranked, std::span<const uint32_t> cluster_of,
                                      uint32_t clusters, uint64_t kv_entries, uint64_t* nan = nullptr);

// AdaKV as in kvpress: each head first retains its own best `safe` rows; the rest of heads * k goes to the
// best remaining rows of all heads. Sums to heads * min(k, rows) exactly. kvpress: safe = int(0.2 * k).
std::vector<uint32_t> count_adakv(const Ranked& ranked, uint32_t k, uint32_t safe, uint64_t* nan = nullptr);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SELECT_SELECT_H_
