// AttentionScoreGrid is the CTA grid of the attention-score kernel (kernels/scoring/cuda/attention_scores.h).
// It computes how query tiles are distributed over CTAs. The kernel launches this grid, and the cost model
// prices a step from it (models/cost_tables/operation_cost.h).
//
// A CTA holds 128 keys of one head and reads query rows in tiles of 16. When there are few keys, several CTAs
// split the query rows of the same keys, so that all CTAs together just fit on the GPU. A CTA waits for its
// own query tiles most of the time, so the kernel's time follows the largest number of tiles that one CTA
// reads.

#ifndef KVTWIN_KERNELS_GRIDS_ATTENTION_SCORE_GRID_H_
#define KVTWIN_KERNELS_GRIDS_ATTENTION_SCORE_GRID_H_

#include <cstdint>

#ifdef __CUDACC__
#define KVT_ON_BOTH_SIDES __host__ __device__
#else
#define KVT_ON_BOTH_SIDES
#endif

namespace kvtwin {

constexpr uint32_t kAttentionScoreTileKeys = 128;   // keys per CTA
constexpr uint32_t kAttentionScoreTileRows = 16;    // query rows of one mma
constexpr uint32_t kAttentionScoreSplitCtas = 528;  // CTAs resident on the GPU at once: the target of splits

struct AttentionScoreGrid {
  uint32_t key_tiles = 0, row_tiles = 0, splits = 1;

  // REQUIRES: `kv_entries` are those of one head, `rows` the query rows whose attention scores are computed.
  KVT_ON_BOTH_SIDES static constexpr AttentionScoreGrid of(uint32_t kv_entries, uint32_t rows,
                                                           uint32_t heads) {
    AttentionScoreGrid out;
    out.key_tiles = (kv_entries + kAttentionScoreTileKeys - 1) / kAttentionScoreTileKeys;
    out.row_tiles = (rows + kAttentionScoreTileRows - 1) / kAttentionScoreTileRows;
    const uint32_t ctas = out.key_tiles * heads, most = out.row_tiles / 2;
    if (ctas > 0 && most > 1)
      out.splits = kAttentionScoreSplitCtas / ctas < most ? kAttentionScoreSplitCtas / ctas : most;
    if (out.splits == 0) out.splits = 1;
    return out;
  }
  // Row tiles that are read one after another, with kAttentionScoreSplitCtas CTAs resident at a time.
  KVT_ON_BOTH_SIDES constexpr uint32_t rounds(uint32_t heads) const {
    const uint32_t ctas = key_tiles * heads * splits,
                   waves = (ctas + kAttentionScoreSplitCtas - 1) / kAttentionScoreSplitCtas;
    return waves * ((row_tiles + splits - 1) / splits);
  }
};

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_GRIDS_ATTENTION_SCORE_GRID_H_
