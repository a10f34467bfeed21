// What a tile of prefill work reads, and the list of tiles that CTAs take from.
//
// The list is ordered by section, then by length, longest first: a CTA takes the next tile whenever it has
// finished one, and short tiles at the end fill the gaps. A section is as many sequences as have 32 MB of
// keys and values between them, so that tiles which run at the same time find them in L2: 132 CTAs that each
// read 64 KB in the 1.9 us of its products want 4.6 TB/s, more than memory could give with everything else.

#ifndef KVTWIN_KERNELS_ATTENTION_PREFILL_PLAN_CUH_
#define KVTWIN_KERNELS_ATTENTION_PREFILL_PLAN_CUH_

#include "kernels/attention/attention_prefill.h"

namespace kvtwin::device {

struct PrefillWork {
  uint32_t sequence = 0;
  uint32_t first = 0;  // token of the chunk
};

struct PrefillPlan {
  uint32_t tiles = 0;
  uint32_t next = 0;  // the tile that is taken next; 0 between launches
  uint32_t done = 0;  // CTAs that found no more; 0 between launches
  uint32_t unused = 0;
  // PrefillWork list[tiles_at_most()]; uint32_t section[sequences] (scratch).
};

__host__ __device__ inline PrefillWork* work_of(PrefillPlan* plan) {
  return reinterpret_cast<PrefillWork*>(plan + 1);
}
__host__ __device__ inline uint32_t tile_tokens(const PrefillShape& shape) {
  return kPrefillTileRows / shape.group;
}
// Every head of a request has the request's rows, so there are at most kv_heads * rows of them.
__host__ __device__ inline size_t tiles_at_most(const PrefillShape& shape) {
  return size_t{shape.rows} * shape.kv_heads / tile_tokens(shape) + shape.sequences;
}

// The tiles of keys of one tile of work: those in pages, then those of the chunk.
struct KeyTiles {
  uint32_t in_pages = 0;  // KV entries in pages
  uint32_t in_chunk = 0;  // KV entries next to the queries
  uint32_t paged = 0;     // tiles
  uint32_t count = 0;     // of both

  // `first`, `tokens`: of the work. A tile is read when any of its tokens may see a KV entry of it.
  __host__ __device__ KeyTiles(const PrefillSequence& s, bool chunk_in_pages, uint32_t first,
                               uint32_t tokens) {
    const uint32_t seen = first + tokens < s.rows ? first + tokens : s.rows;
    in_pages = s.past + (chunk_in_pages ? s.rows : 0);
    in_chunk = chunk_in_pages ? 0 : s.rows;
    const uint32_t paged_seen = s.past + (chunk_in_pages ? seen : 0);
    paged = (paged_seen + kPrefillTileKeys - 1) / kPrefillTileKeys;
    count = paged + (chunk_in_pages ? 0 : (seen + kPrefillTileKeys - 1) / kPrefillTileKeys);
  }
  // First KV entry of tile j in its part, how many KV entries it has, and its place among all KV entries.
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
