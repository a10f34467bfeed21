// How the sequences of a decode step are cut among warps: shares of one long list of blocks.
//
// With N blocks in all and C CTAs (at most N, so that none is idle), CTA c takes N / C blocks (the first ones
// one more), its warps equal parts of that. Equal shares are right although SMs are not alike: 24 of an
// H200's 132 finish theirs in three quarters of the time, but then the memory serves the others faster.
// Shares in proportion, and shares that are claimed at run time, were built and measured: no gain
// (kernels/README.md).

#ifndef KVTWIN_KERNELS_ATTENTION_DECODE_PLAN_CUH_
#define KVTWIN_KERNELS_ATTENTION_DECODE_PLAN_CUH_

#include "kernels/attention/attention_decode.h"

namespace kvtwin::device {

// One warp's part: `blocks` blocks from block `block` of `sequence` on.
struct WarpSplit {
  uint32_t sequence = 0;
  uint32_t block = 0;
  uint32_t blocks = 0;
  uint32_t first = 0;   // of the list of all blocks
  DecodeSequence info;  // of that sequence, so that a warp's first load has all of it
};

struct DecodePlan {
  uint32_t blocks = 0;    // N
  uint32_t ctas = 0;      // C
  uint32_t each = 0;      // N / C
  uint32_t one_more = 0;  // N % C
  // WarpSplit shares[shape.ctas * kDecodeWarps]; uint32_t first_block[sequences] (scratch).

  __host__ __device__ uint32_t cta_begin(uint32_t cta) const {
    return cta * each + (cta < one_more ? cta : one_more);
  }
  __host__ __device__ uint32_t cta_of(uint32_t block) const {
    const uint32_t bound = one_more * (each + 1);
    return block < bound ? block / (each + 1) : one_more + (block - bound) / each;
  }
};

// Of splits that the caller made (decode_splits.h), a CTA each.
struct PiecePlan {
  uint32_t ctas = 0;
  uint32_t unused = 0;
  const uint32_t* begins = nullptr;  // [ctas]: the first block of each, in the list of all blocks

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
// An empty sequence is one block without tokens, which writes its zeros.
__host__ __device__ inline uint32_t blocks_of(uint32_t tokens) {
  return tokens == 0 ? 1 : (tokens + kDecodeBlockTokens - 1) / kDecodeBlockTokens;
}

// Workspace: how many parts of (sequence, head) have arrived; then the parts, two of each CTA: of the
// sequence that it entered, and of the one that it left in the middle.
__host__ __device__ inline size_t parts_offset(uint32_t sequences) {
  return (size_t{sequences} * kDecodeGroupMax * sizeof(uint32_t) + 15) / 16 * 16;
}

// ---- for the kernels that plan

// Inclusive sum over the CTA. `warp_sums`: 32 words of shared memory.
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

// The last sequence that starts at or before `block`.
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
