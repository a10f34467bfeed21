// Many query rows against a tile of 128 keys: shared by both passes of compute_attention_scores
// (attention_scores.cu).

#ifndef KVTWIN_KERNELS_SCORING_CUDA_ATTENTION_SCORES_TILE_CUH_
#define KVTWIN_KERNELS_SCORING_CUDA_ATTENTION_SCORES_TILE_CUH_

#include <cmath>

#include "kernels/common/kv_entry_heads.cuh"
#include "kernels/scoring/cuda/attention_scores_parts.cuh"

namespace kvtwin::device {

constexpr uint32_t kAttentionScoreWarps = 4, kAttentionScoreThreads = kAttentionScoreWarps * 32;
constexpr uint32_t kAttentionScoreWarpKeys = kAttentionScoreTileKeys / kAttentionScoreWarps;
constexpr uint32_t kAttentionScoreBlocks = kAttentionScoreWarpKeys / 8;  // mma blocks of a warp's keys
static_assert(kAttentionScoreTileKeys == kAttentionScoreThreads);

// Asynchronous copy of sixteen bytes that bypasses L1; complete after wait_async_copies().
__device__ inline void copy_async(uint32_t target, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}
__device__ inline void wait_async_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// A tile of keys in registers as mma operands; query rows pass by in tiles of sixteen. kJoin: the logits of
// the group's heads are reduced to one.
template <int kDim, bool kJoin>
struct AttentionScorer {
  static constexpr uint32_t kChunks = kDim / 8, kSteps = kDim / 16;
  static constexpr uint32_t kHeld =
      kAttentionScoreTileRows * kChunks / kAttentionScoreThreads;  // chunks of a query tile per thread

  struct Shared {
    uint4 keys[kAttentionScoreTileKeys * kChunks];
    uint4 queries[2][kAttentionScoreTileRows * kChunks];
    float2 parts[2][kAttentionScoreWarps]
                [kAttentionScoreTileRows];  // of the current tile and of the previous one
    KvEntryPlace places[kAttentionScoreTileKeys];
  };

  const AttentionScoreArgs& args;
  const AttentionScoreHead head;
  const uint32_t first;  // row of the tile's first key
  const uint32_t lane, warp;
  uint32_t first_tile = 0, tiles = 0;  // query tiles of this CTA's split
  Shared* const shared;
  uint32_t keys[kAttentionScoreBlocks][kSteps][2];
  uint4 coming[kHeld];

  __device__ AttentionScorer(const AttentionScoreArgs& a, Shared* s)
      : args(a),
        head(a.heads[blockIdx.y]),
        first(blockIdx.x * kAttentionScoreTileKeys),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        shared(s) {
    const uint32_t all = tiles_of(head.queries, kAttentionScoreTileRows), each = tiles_of(all, gridDim.z);
    first_tile = min(blockIdx.z * each, all);
    tiles = min(each, all - first_tile);
  }

  // Order of the query tiles: head by head, or with kJoin the group's heads of the same query rows together.
  __device__ uint32_t all_tiles() const { return tiles * args.group; }
  __device__ uint32_t head_of(uint32_t t) const { return kJoin ? t % args.group : t / tiles; }
  __device__ uint32_t row_of(uint32_t t) const {
    return (first_tile + (kJoin ? t / args.group : t % tiles)) * kAttentionScoreTileRows;
  }
  __device__ uint32_t visible(uint32_t row) const {
    return row < head.queries ? __ldg(args.visible + head.visible + row) : 0;
  }
  // Visible counts ascend: if the last row of the tile sees none of these keys, no row does.
  __device__ bool sees(uint32_t t) const {
    return visible(min(row_of(t) + kAttentionScoreTileRows, head.queries) - 1) > first;
  }
  // If the first row sees them all, all rows do.
  __device__ bool sees_all(uint32_t t) const {
    return row_of(t) + kAttentionScoreTileRows <= head.queries &&
           visible(row_of(t)) >= first + kAttentionScoreTileKeys;
  }

  static __device__ uint32_t at(uint32_t row, uint32_t chunk) { return row * kChunks + (chunk ^ (row & 7)); }

  // Starts the loads of all keys of the CTA at once, after computing all their addresses.
  __device__ void load_keys() {
    // Rows beyond the last are invisible but must hold finite numbers.
    const uint32_t row = min(first + threadIdx.x, head.kv_entries.rows - 1), chunk = threadIdx.x % kChunks;
    shared->places[threadIdx.x] = place_of(args.kv_entries, head.kv_entries, row);
    __syncthreads();
#pragma unroll
    for (uint32_t of = threadIdx.x / kChunks; of < kAttentionScoreTileKeys;
         of += kAttentionScoreThreads / kChunks)
      copy_async(shared_address(&shared->keys[at(of, chunk)]),
                 key_chunk<kDim>(args.kv_entries, shared->places[of], chunk));
    wait_async_copies();
    __syncthreads();
#pragma unroll
    for (uint32_t b = 0; b < kAttentionScoreBlocks; b += 2) {
#pragma unroll
      for (uint32_t step = 0; step < kSteps; ++step) {
        const uint32_t row = warp * kAttentionScoreWarpKeys + b * 8 + lane / 16 * 8 + lane % 8;
        const Fragment4 f = load_matrices(shared_address(&shared->keys[at(row, 2 * step + lane / 8 % 2)]));
        keys[b][step][0] = f.r[0], keys[b][step][1] = f.r[1];
        keys[b + 1][step][0] = f.r[2], keys[b + 1][step][1] = f.r[3];
      }
    }
  }

  __device__ void fetch(uint32_t t) {
    const uint32_t query_head = head.q_head + head_of(t), row = row_of(t);
#pragma unroll
    for (uint32_t k = 0; k < kHeld; ++k) {
      const uint32_t i = k * kAttentionScoreThreads + threadIdx.x;
      const uint32_t from = head.q_row + min(row + i / kChunks, head.queries - 1);
      coming[k] = __ldg(reinterpret_cast<const uint4*>(args.q + size_t{from} * args.q_stride +
                                                       size_t{query_head} * kDim + 8 * (i % kChunks)));
    }
  }
  __device__ void put(uint32_t t) {
#pragma unroll
    for (uint32_t k = 0; k < kHeld; ++k) {
      const uint32_t i = k * kAttentionScoreThreads + threadIdx.x;
      shared->queries[t % 2][at(i / kChunks, i % kChunks)] = coming[k];
    }
  }

  // Base-2 logits of the tile, [16 rows][32 keys of the warp]: rows lane / 4 and that + 8, columns
  // 8 b + 2 (lane % 4) and the next.
  __device__ void multiply(uint32_t t, float (&s)[kAttentionScoreBlocks][4]) const {
#pragma unroll
    for (uint32_t b = 0; b < kAttentionScoreBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[b][i] = 0;
    }
#pragma unroll
    for (uint32_t step = 0; step < kSteps; ++step) {
      const uint32_t row = lane / 8 % 2 * 8 + lane % 8;
      const Fragment4 q =
          load_matrices(shared_address(&shared->queries[t % 2][at(row, 2 * step + lane / 16)]));
#pragma unroll
      for (uint32_t b = 0; b < kAttentionScoreBlocks; ++b)
        multiply_add(s[b], q, keys[b][step][0], keys[b][step][1]);
    }
    const float scale = args.scale * kLog2e;
#pragma unroll
    for (uint32_t b = 0; b < kAttentionScoreBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[b][i] *= scale;
    }
  }

  __device__ void hide(uint32_t t, bool seen, float (&s)[kAttentionScoreBlocks][4]) const {
    const uint32_t row = row_of(t) + lane / 4;
    const uint32_t visible_of[2] = {seen ? visible(row) : 0, seen ? visible(row + 8) : 0};
#pragma unroll
    for (uint32_t b = 0; b < kAttentionScoreBlocks; ++b) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t key = first + warp * kAttentionScoreWarpKeys + b * 8 + lane % 4 * 2 + i % 2;
        if (key >= visible_of[i / 2]) s[b][i] = -INFINITY;
      }
    }
  }

  // visit(t, logits): with kJoin, once per group with the reduced logits. Invisible keys have -infinity.
  // meanwhile(t): runs after a barrier that follows visit(t - 1). Called by all threads of the CTA.
  template <typename Visit, typename Meanwhile>
  __device__ void for_rows(Visit visit, Meanwhile meanwhile) {
    const uint32_t all = all_tiles();
    float together[kJoin ? kAttentionScoreBlocks : 1][4];
    fetch(0);
    for (uint32_t t = 0; t < all; ++t) {
      put(t);
      __syncthreads();
      meanwhile(t);
      if (t + 1 < all) fetch(t + 1);
      float s[kAttentionScoreBlocks][4];
      const bool seen = sees(t);
      if (seen) multiply(t, s);
      if (!seen || !sees_all(t)) hide(t, seen, s);
      if constexpr (kJoin) {
#pragma unroll
        for (uint32_t b = 0; b < kAttentionScoreBlocks; ++b) {
#pragma unroll
          for (uint32_t i = 0; i < 4; ++i)
            s[b][i] = together[b][i] = head_of(t) > 0 ? fmaxf(together[b][i], s[b][i]) : s[b][i];
        }
        if (head_of(t) + 1 < args.group) continue;
      }
      visit(t, s);
    }
    __syncthreads();
    meanwhile(all);
  }
};

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_SCORING_CUDA_ATTENTION_SCORES_TILE_CUH_
