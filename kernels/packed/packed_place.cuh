// Shared memory of the packed decode kernel, and positions in its list of blocks.

#ifndef KVTWIN_KERNELS_PACKED_PACKED_PLACE_CUH_
#define KVTWIN_KERNELS_PACKED_PACKED_PLACE_CUH_

#include "kernels/attention/attention_decode_merge.cuh"
#include "kernels/packed/packed_plan.cuh"

namespace kvtwin::device {

// Shared memory of a CTA: [ring of each warp][a partial of each warp][owners][barriers]. The partial of the
// sequence that a warp leaves in the middle is its last, so it is stored in the warp's idle ring. kMasks:
// with masks of live KV entries. Kernels without the code for masks are 5 % faster for int2.
template <class FormatFamily, int kHeadSlots, bool kMasks>
struct PackedGeometry {
  using Family = FormatFamily;
  static constexpr int kDim = Family::kDim, kHeads = kHeadSlots, kWarps = kPackedWarps;
  static constexpr uint32_t kCopied = kWarps / kCopyWarps;  // consumer warps per producer warp
  static constexpr int kPartFloats = kHeads * (kDim + 2);
  // Masks of live KV entries follow the values: 16 bytes for each of a block's at most 4 pages. Stages are
  // aligned to 128 bytes; copies to other addresses are 8 % slower.
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
  static constexpr int kShared = kBarriers + kWarps * kSlots * 16;  // full and empty barriers
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

// The position of a block in the list.
template <class Family>
struct PackedPlace {
  static __device__ __forceinline__ PackedRules rules() { return {Family::kLayout, Family::kScaleGroup}; }
  uint32_t sequence, part, block;
  uint32_t blocks, tokens;  // of the part
  uint32_t q_row, column, table;
  uint32_t position;  // first unit of cost of the block

  // Moves to the first part from `from` on that has KV entries, or to an empty sequence. Returns false if
  // there is none.
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
