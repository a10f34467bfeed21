// How the sequences of a decode step are split among warps: equal splits of one list of blocks.
//
// With N blocks and C <= N CTAs, CTA c takes N / C blocks (the first N % C CTAs one more) and divides them
// evenly among its warps. Equal splits suffice although SMs differ: the kernel is bound by memory, so a fast
// SM that ends early leaves its bandwidth to the others. Measured alternatives:
// docs/notes/2026-11-23-kernels.md#decode-attention.

#ifndef KVTWIN_KERNELS_ATTENTION_DECODE_PLAN_CUH_
#define KVTWIN_KERNELS_ATTENTION_DECODE_PLAN_CUH_

#include "kernels/attention/attention_decode.h"

namespace kvtwin::device {

// The split of one warp: `blocks` blocks, starting at block `block` of `sequence`.
struct WarpSplit {
  uint32_t sequence = 0;
  uint32_t block = 0;
  uint32_t blocks = 0;
  uint32_t first = 0;   // index of its first block in the list of all blocks
  DecodeSequence info;  // of `sequence`; stored here to save a dependent load
};

struct DecodePlan {
  uint32_t blocks = 0;    // N
  uint32_t ctas = 0;      // C
  uint32_t each = 0;      // N / C
  uint32_t one_more = 0;  // N % C
  // Followed by WarpSplit splits[shape.ctas * kDecodeWarps] and uint32_t first_block[sequences] (scratch).

  __host__ __device__ uint32_t cta_begin(uint32_t cta) const {
    return cta * each + (cta < one_more ? cta : one_more);
  }
  __host__ __device__ uint32_t cta_of(uint32_t block) const {
    const uint32_t bound = one_more * (each + 1);
    return block < bound ? block / (each + 1) : one_more + (block - bound) / each;
  }
};

// Externally supplied splits (decode_splits.h), one CTA each.
struct PiecePlan {
  uint32_t ctas = 0;
  uint32_t unused = 0;
  const uint32_t* begins =
      nullptr;  // [ctas]: index of the first block of each split in the list of all blocks

  __device__ uint32_t cta_of(uint32_t block) const {
    uint32_t low = 0, high = ctas;
    while (high - low > 1) {
      const uint32_t middle = (low + high) / 2;
      (begins[middle] <= block ? low : high) = middle;
    }
    return low;
  }
};

template <class Plan>
__host__ __device__ inline WarpSplit* fractions_of(Plan* plan) {
  return reinterpret_cast<WarpSplit*>(plan + 1);
}
// An empty sequence (a row of padding) has no block. Its zeros are written beside the splits: opening a
// sequence takes two dependent loads, and as blocks all empty sequences would fall to one warp, for which
// the others wait.
__host__ __device__ inline uint32_t blocks_of(uint32_t tokens) {
  return (tokens + kDecodeBlockTokens - 1) / kDecodeBlockTokens;
}

// Layout of the workspace: arrival counters by (sequence, head), then two partial results per CTA: one of the
// sequence that its split enters in the middle, one of the sequence that it leaves in the middle.
__host__ __device__ inline size_t parts_offset(uint32_t sequences) {
  return (size_t{sequences} * kDecodeGroupMax * sizeof(uint32_t) + 15) / 16 * 16;
}

// ---- Helpers of the planning kernels

// Inclusive prefix sum over the CTA. `warp_sums`: 32 words of shared memory.
__device__ inline uint32_t sum_up_to_me(uint32_t value, uint32_t* warp_sums) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (uint32_t by = 1; by < 32; by *= 2) {
    const uint32_t left = __shfl_up_sync(0xffffffffu, value, by);
    if (lane >= by) value += left;
  }
  if (lane == 31) warp_sums[warp] = value;
  __syncthreads();
  if (warp == 0) {
    uint32_t sum = warp_sums[lane];
    for (uint32_t by = 1; by < 32; by *= 2) {
      const uint32_t left = __shfl_up_sync(0xffffffffu, sum, by);
      if (lane >= by) sum += left;
    }
    warp_sums[lane] = sum;
  }
  __syncthreads();
  const uint32_t before = warp == 0 ? 0 : warp_sums[warp - 1];
  __syncthreads();
  return before + value;
}

// The last sequence that starts at or before `block`, so one with blocks: an empty one starts where the next
// one does.
__device__ inline uint32_t sequence_of(uint32_t block, const uint32_t* first_block, uint32_t sequences) {
  uint32_t low = 0, high = sequences;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (first_block[middle] <= block ? low : high) = middle;
  }
  return low;
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_ATTENTION_DECODE_PLAN_CUH_
