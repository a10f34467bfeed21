// How the parts of a packed decode step are split among warps: splits of one list of blocks, of equal cost.
//
// Blocks of different formats take different times, so positions in the list are units of *cost*: a block of
// a part occupies block_cost(part) units and belongs to the split that has its first unit. The arithmetic of
// decode_plan.cuh then applies unchanged (C CTAs take equal ranges of N units). A range within a sequence is
// never shorter than the most expensive block, so every CTA from a sequence's first to its last has a partial
// of it, which the merge requires.

#ifndef KVTWIN_KERNELS_PACKED_PACKED_PLAN_CUH_
#define KVTWIN_KERNELS_PACKED_PACKED_PLAN_CUH_

#include "kernels/attention/decode_plan.cuh"
#include "kernels/packed/packed_decode.h"

namespace kvtwin::device {

constexpr uint32_t kPackedWarps = 12;  // consumer warps of a CTA; one CTA per SM
// Producer warps, one per scheduler: a single one is 5 to 10 % slower.
constexpr uint32_t kCopyWarps = 4;

// KV entries per block: as many as fit a stage (packed_rows.cuh).
__host__ __device__ constexpr uint32_t block_tokens(PackedLayout layout, uint32_t scale_group,
                                                    uint32_t part) {
  if (layout == PackedLayout::kFp4) return 64;
  if (layout == PackedLayout::kKivi && part == kPartHighPrecision) return 16;
  if (part == kPartInt2) return scale_group == 128 ? 128 : 64;
  return part == kPartInt4 ? 64 : 32;
}
// Proportional to the measured time of a block (packed_decode_bench), not to its bytes: int2 is bound by
// instructions and slower per byte.
__host__ __device__ constexpr uint32_t block_cost(PackedLayout layout, uint32_t scale_group, uint32_t part) {
  if (layout == PackedLayout::kFp4) return 16;
  if (layout == PackedLayout::kKivi && part == kPartHighPrecision) return 8;
  if (part == kPartInt2) return scale_group == 128 ? 20 : 11;
  return part == kPartInt4 ? 12 : 9;
}
constexpr uint32_t kCostMost = 20;
// An empty sequence (a row of padding): a warp loads it, waits for its stages and writes its zeros.
constexpr uint32_t kCostOfNothing = 6;

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

// The split of one warp: the blocks that start in [first, end) of the list, from `block` of `part` of
// `sequence` on.
struct PackedSplit {
  uint32_t sequence = 0;
  uint32_t part = 0;
  uint32_t block = 0;
  uint32_t first = 0;  // position of its first block
  uint32_t end = 0;    // at most `first`: no work
  uint32_t begin = 0;  // position of the sequence's first block
  uint32_t unused[2] = {};
  PackedSequence info;  // of `sequence`; stored here to save a dependent load
};

__host__ __device__ inline PackedSplit* packed_fractions_of(DecodePlan* plan) {
  return reinterpret_cast<PackedSplit*>(plan + 1);
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_PACKED_PACKED_PLAN_CUH_
