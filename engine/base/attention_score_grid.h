// How the query rows of a chunk that looks at its head's KV entries are dealt out to a GPU
// (kernels/scoring/cuda/attention_scores.h): what the kernels do and what a step is priced by
// (models/cost_tables/method_cost.h).
//
// A CTA has 128 keys of a head and query rows that come by sixteen at a time. Where keys are few, several
// CTAs share the rows of the same keys, so that all CTAs together just fit on the GPU. As each waits for its
// own tiles of rows most of the time, what counts is how many of them the CTA with most has to take.

#ifndef KVTWIN_ENGINE_BASE_ATTENTION_SCORE_GRID_H_
#define KVTWIN_ENGINE_BASE_ATTENTION_SCORE_GRID_H_

#include <cstdint>

#ifdef __CUDACC__
#define KVT_ON_BOTH_SIDES __host__ __device__
#else
#define KVT_ON_BOTH_SIDES
#endif

namespace kvtwin {

constexpr uint32_t kAttentionScoreTileKeys = 128;  // keys of a CTA that has many query rows
constexpr uint32_t kAttentionScoreTileRows = 16;   // query rows of one mma
constexpr uint32_t kAttentionScoreSplitCtas =
    528;  // as many CTAs as query rows are dealt out to, where keys are few

struct AttentionScoreGrid {
  uint32_t key_tiles = 0, row_tiles = 0, splits = 1;

  // `kv_entries` of each of `heads` heads, and `rows` that look at them.
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
  // Tiles of rows one after the other, in a GPU that holds kAttentionScoreSplitCtas CTAs at a time.
  KVT_ON_BOTH_SIDES constexpr uint32_t rounds(uint32_t heads) const {
    const uint32_t ctas = key_tiles * heads * splits,
                   waves = (ctas + kAttentionScoreSplitCtas - 1) / kAttentionScoreSplitCtas;
    return waves * ((row_tiles + splits - 1) / splits);
  }
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_BASE_ATTENTION_SCORE_GRID_H_
