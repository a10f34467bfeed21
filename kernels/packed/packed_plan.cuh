// How the parts of a packed decode step are cut among warps: shares of one long list of blocks, by cost.
//
// Blocks of different formats take different times, so the list is measured in *cost*, not in blocks: a block
// of a part occupies block_cost(part) units, and belongs to the share in which its first unit lies. With
// that, decode_plan.cuh's arithmetic holds as it is (C CTAs take equal ranges of N units): a range inside a
// sequence is never shorter than the dearest block, so that every CTA from the first to the last of a
// sequence has a part of it, which is what merging counts on.

#ifndef KVTWIN_KERNELS_PACKED_PACKED_PLAN_CUH_
#define KVTWIN_KERNELS_PACKED_PACKED_PLAN_CUH_

#include "kernels/attention/decode_plan.cuh"
#include "kernels/packed/packed_decode.h"

namespace kvtwin::device {

constexpr uint32_t kPackedWarps = 12;  // of a CTA that multiply; one CTA per SM
// Warps that start copies, one per scheduler: one for all is too slow by 5 to 10 %.
constexpr uint32_t kCopyWarps = 4;

// KV entries that a warp takes at a time: what fits a slot of its ring (packed_fast.cuh, packed_rows.cuh).
__host__ __device__ constexpr uint32_t block_tokens(PackedLayout layout, uint32_t scale_group,
                                                    uint32_t part) {
  if (layout == PackedLayout::kFast) return part == kPartInt2 ? 128 : part == kPartInt4 ? 64 : 16;
  if (layout == PackedLayout::kFp4) return 64;
  if (layout == PackedLayout::kKivi && part == kPartHighPrecision) return 16;
  if (part == kPartInt2) return scale_group == 128 ? 128 : 64;
  return part == kPartInt4 ? 64 : 32;
}
// In proportion to the measured time of a block (packed_decode_bench), not to its bytes: int2 is slower per
// byte, because it is bound by instructions.
__host__ __device__ constexpr uint32_t block_cost(PackedLayout layout, uint32_t scale_group, uint32_t part) {
  if (layout == PackedLayout::kFast) return part == kPartInt2 ? 11 : part == kPartInt4 ? 9 : 8;
  if (layout == PackedLayout::kFp4) return 16;
  if (layout == PackedLayout::kKivi && part == kPartHighPrecision) return 8;
  if (part == kPartInt2) return scale_group == 128 ? 20 : 11;
  return part == kPartInt4 ? 12 : 9;
}
constexpr uint32_t kCostMost = 20;
constexpr uint32_t kCostOfNothing = 1;  // an empty sequence: its zeros are written

struct PackedRules {
  PackedLayout layout;
  uint32_t scale_group;

  __host__ __device__ constexpr uint32_t tokens(uint32_t part) const {
    return block_tokens(layout, scale_group, part);
  }
  __host__ __device__ constexpr uint32_t cost(uint32_t part) const {
    return block_cost(layout, scale_group, part);
  }
  __host__ __device__ uint32_t blocks(const PackedSequence& s, uint32_t part) const {
    return (s.tokens[part] + tokens(part) - 1) / tokens(part);
  }
  __host__ __device__ uint32_t cost(const PackedSequence& s) const {
    uint32_t sum = 0;
    for (uint32_t part = 0; part < kPackedParts; ++part) sum += blocks(s, part) * cost(part);
    return sum == 0 ? kCostOfNothing : sum;
  }
};

// One warp's part: the blocks that start in [first, end) of the list, from `block` of `part` of `sequence`.
struct PackedSplit {
  uint32_t sequence = 0;
  uint32_t part = 0;
  uint32_t block = 0;
  uint32_t first = 0;  // of its first block
  uint32_t end = 0;    // at most `first`: nothing to do
  uint32_t begin = 0;  // of the sequence's first block
  uint32_t unused[2] = {};
  PackedSequence info;  // so that a warp's first load has all of it
};

__host__ __device__ inline PackedSplit* packed_fractions_of(DecodePlan* plan) {
  return reinterpret_cast<PackedSplit*>(plan + 1);
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_PACKED_PACKED_PLAN_CUH_
