// The packed decode kernel's shared memory, and what a block of its list of blocks is.

#ifndef KVTWIN_KERNELS_PACKED_PACKED_PLACE_CUH_
#define KVTWIN_KERNELS_PACKED_PACKED_PLACE_CUH_

#include "kernels/attention/attention_decode_merge.cuh"
#include "kernels/packed/packed_plan.cuh"

namespace kvtwin::device {

// Shared memory of a CTA: [ring of each warp][a part of each warp][whose they are][barriers]. The part that a
// warp leaves in the middle is its last, when its ring is idle: it lies there.
// kMasks: there are bits of live KV entries. Not having them in the code makes int2 5 % faster.
template <class FormatFamily, int kHeadSlots, bool kMasks>
struct PackedGeometry {
  using Family = FormatFamily;
  using Plan = DecodePlan;
  static constexpr int kDim = Family::kDim, kHeads = kHeadSlots, kWarps = kPackedWarps;
  static constexpr uint32_t kCopied = kWarps / kCopyWarps;  // warps of a copying warp
  static constexpr int kPartFloats = kHeads * (kDim + 2);
  // Behind the values: bits of live KV entries, 16 bytes of each of a block's at most 4 pages. Slots stay
  // aligned to 128 bytes: copies into others are slower by 8 %.
  static constexpr uint32_t kLive = Family::kSlot;
  static constexpr uint32_t kSlot = Family::kSlot + (kMasks ? 128 : 0);
  static constexpr bool kMasked = kMasks;
  static_assert(kSlot % 128 == 0);
  static constexpr int kFixed = kWarps * (kPartFloats * 4 + 2 * 16);
  static constexpr int kFit = (227 * 1024 - kFixed) / (kWarps * (static_cast<int>(kSlot) + 16));
  static constexpr int kSlots = kFit < 6 ? kFit : 6;
  static constexpr int kRing = kSlots * kSlot;
  static constexpr int kRetained = kWarps * kRing;
  static constexpr int kOwners = kRetained + kWarps * kPartFloats * 4;
  static constexpr int kBarriers = kOwners + 2 * kWarps * 16;
  static constexpr int kShared = kBarriers + kWarps * kSlots * 16;  // full, empty
  static_assert(kSlots >= 2 && kPartFloats * 4 <= kRing && kShared <= 227 * 1024);

  static __device__ __forceinline__ uint32_t part_at(uint32_t slot) {
    return slot % 2 == 0 ? kRetained + slot / 2 * kPartFloats * 4 : slot / 2 * kRing;
  }
  static __device__ __forceinline__ uint32_t channel(uint32_t tile, uint32_t row) {
    return Family::channel(tile, row);
  }
};

__device__ __forceinline__ PackedSequence load_sequence(const PackedSequence* at) {
  const uint4 a = __ldg(reinterpret_cast<const uint4*>(at)),
              b = __ldg(reinterpret_cast<const uint4*>(at) + 1);
  return {a.x, a.y, {a.z, a.w, b.x}, {b.y, b.z, b.w}};
}

// A block of the list.
template <class Family>
struct PackedPlace {
  static __device__ __forceinline__ PackedRules rules() { return {Family::kLayout, Family::kScaleGroup}; }
  uint32_t sequence, part, block;
  uint32_t blocks, tokens;  // of the part
  uint32_t q_row, column, table;
  uint32_t position;  // its first unit of cost

  // The first part from `from` on that has KV entries, or nothing at all. False: there is none.
  __device__ __forceinline__ bool open(const PackedSequence* sequences, uint32_t at, uint32_t from) {
    return open(load_sequence(sequences + at), at, from);
  }
  __device__ __forceinline__ bool open(const PackedSequence& s, uint32_t at, uint32_t from) {
    const bool empty = s.tokens[0] == 0 && s.tokens[1] == 0 && s.tokens[2] == 0;
    uint32_t found = kPackedParts;
#pragma unroll
    for (int i = kPackedParts - 1; i >= 0; --i) {
      if (static_cast<uint32_t>(i) >= from && s.tokens[i] > 0) found = i;
    }
    if (found == kPackedParts && !(empty && from == 0)) return false;
    sequence = at, block = 0, q_row = s.q_row, column = s.column;
    part = found == kPackedParts ? 0 : found;
    tokens = part == 0 ? s.tokens[0] : part == 1 ? s.tokens[1] : s.tokens[2];
    table = part == 0 ? s.table[0] : part == 1 ? s.table[1] : s.table[2];
    blocks = max(1u, (tokens + rules().tokens(part) - 1) / rules().tokens(part));
    return true;
  }
  __device__ __forceinline__ void start(const PackedSplit& split) {
    open(split.info, split.sequence, split.part);
    block = split.block, position = split.first;
  }
  __device__ __forceinline__ uint32_t cost() const {
    return tokens == 0 ? kCostOfNothing : rules().cost(part);
  }
};

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_PACKED_PACKED_PLACE_CUH_
