// The list of tiles of prefill work, and the key tiles that each one reads.
//
// The list is ordered by section, then longest first. A CTA takes the next tile whenever it finishes one, so
// the short tiles at the end even out the load. A section is a group of sequences with 32 MB of K and V in
// all, so that concurrent tiles find K and V in L2: 132 CTAs that each read 64 KB per 1.9 us of products
// would need 4.6 TB/s, nearly all of DRAM's 4.69 TB/s.

#ifndef KVTWIN_KERNELS_ATTENTION_PREFILL_PLAN_CUH_
#define KVTWIN_KERNELS_ATTENTION_PREFILL_PLAN_CUH_

#include "kernels/attention/attention_prefill.h"

namespace kvtwin::device {

struct PrefillWork {
  uint32_t sequence = 0;
  uint32_t first = 0;  // first token of the tile in the chunk
};

struct PrefillPlan {
  uint32_t tiles = 0;
  uint32_t next = 0;  // index of the next tile; 0 between launches
  uint32_t done = 0;  // CTAs that found no more work; 0 between launches
  uint32_t unused = 0;
  // Followed by PrefillWork list[tiles_at_most()] and uint32_t section[sequences] (scratch).
};

__host__ __device__ inline PrefillWork* work_of(PrefillPlan* plan) {
  return reinterpret_cast<PrefillWork*>(plan + 1);
}
__host__ __device__ inline uint32_t tile_tokens(const PrefillShape& shape) {
  return kPrefillTileRows / shape.group;
}
// Upper bound: every KV head of a request has the request's rows, so all sequences have kv_heads * rows rows.
__host__ __device__ inline size_t tiles_at_most(const PrefillShape& shape) {
  return size_t{shape.rows} * shape.kv_heads / tile_tokens(shape) + shape.sequences;
}

// The key tiles of one tile of work: first those in pages, then those of the chunk.
struct KeyTiles {
  uint32_t in_pages = 0;  // KV entries in pages
  uint32_t in_chunk = 0;  // KV entries in dense rows of k and v
  uint32_t paged = 0;     // key tiles in pages
  uint32_t count = 0;     // all key tiles

  // `first`, `tokens`: of the tile of work. A key tile is read if any of its KV entries is visible to any of
  // these tokens.
  __host__ __device__ KeyTiles(const PrefillSequence& s, bool chunk_in_pages, uint32_t first,
                               uint32_t tokens) {
    const uint32_t seen = first + tokens < s.rows ? first + tokens : s.rows;
    in_pages = s.past + (chunk_in_pages ? s.rows : 0);
    in_chunk = chunk_in_pages ? 0 : s.rows;
    const uint32_t paged_seen = s.past + (chunk_in_pages ? seen : 0);
    paged = (paged_seen + kPrefillTileKeys - 1) / kPrefillTileKeys;
    count = paged + (chunk_in_pages ? 0 : (seen + kPrefillTileKeys - 1) / kPrefillTileKeys);
  }
  // Of key tile j: its first KV entry within its part (pages or chunk), its number of KV entries, and its
  // position among all KV entries of the sequence.
  __host__ __device__ uint32_t first(uint32_t j) const {
    return (j < paged ? j : j - paged) * kPrefillTileKeys;
  }
  __host__ __device__ uint32_t valid(uint32_t j) const {
    const uint32_t left = (j < paged ? in_pages : in_chunk) - first(j);
    return left < kPrefillTileKeys ? left : kPrefillTileKeys;
  }
  __host__ __device__ uint32_t base(uint32_t j) const { return first(j) + (j < paged ? 0 : in_pages); }
};

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_ATTENTION_PREFILL_PLAN_CUH_
