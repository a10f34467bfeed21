// Rows per token (values, and int4 keys) of docs/design/methods/triaxialkv.md#bytes: loads of scales and
// codes. See packed_rows.cuh.

#ifndef KVTWIN_KERNELS_PACKED_PACKED_ROWS_TOKENS_CUH_
#define KVTWIN_KERNELS_PACKED_PACKED_ROWS_TOKENS_CUH_

#include "kernels/packed/packed_math.cuh"

namespace kvtwin::device {

// The scales (or zeros) of one token: kCount fp16 at `at`, as pairs.
template <int kCount>
__device__ __forceinline__ void load_pairs(uint32_t at, uint32_t (&pairs)[(kCount + 1) / 2]) {
  if constexpr (kCount == 4) {
    const uint2 two = load_words2(at);
    pairs[0] = two.x, pairs[1] = two.y;
  } else if constexpr (kCount == 2) {
    pairs[0] = load_word(at);
  } else {
    pairs[0] = load_u16(at);
  }
}
// (number i of a, number i of b)
template <int kPairs>
__device__ __forceinline__ uint32_t pair_of(const uint32_t (&a)[kPairs], const uint32_t (&b)[kPairs], int i) {
  return __byte_perm(a[i / 2], b[i / 2], i % 2 == 0 ? 0x5410 : 0x7632);
}

template <typename T>
__device__ __forceinline__ void copy(const T& from, T& to) {
  to = from;
}
template <typename T, int kCount>
__device__ __forceinline__ void copy(const T (&from)[kCount], T (&to)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) copy(from[i], to[i]);
}
// Moves the first kBy behind the others. For loops over arrays in registers, which only constants can index.
template <int kBy, typename T, int kCount>
__device__ __forceinline__ void rotate(T (&values)[kCount]) {
  T old[kCount];
  copy(values, old);
#pragma unroll
  for (int i = 0; i < kCount; ++i) copy(old[(i + kBy) % kCount], values[i]);
}

// A row of one token: `kBits` per channel, then kGroups scales, then as many zeros.
template <int kDim, int kScaleGroup, int kBits>
struct TokenRows {
  static constexpr int kGroups = kScaleGroup >= kDim ? 1 : kDim / kScaleGroup;
  static constexpr uint32_t kCodes = kDim * kBits / 8, kZeros = kCodes + 2 * kGroups,
                            kRow = kCodes + 4 * kGroups;

  static __device__ __forceinline__ float reserve(uint32_t at, uint32_t lane, int tokens) {
    uint32_t most = 0, any = 0;
    for (uint32_t t = lane; t < static_cast<uint32_t>(tokens); t += 32) {
      uint32_t scales[(kGroups + 1) / 2];
      load_pairs<kGroups>(at + t * kRow + kCodes, scales);
#pragma unroll
      for (const uint32_t pair : scales) any |= pair, most = max_fp16(most, pair);
    }
    return has_large_scale(any) ? reserve_of(most, 7) : 0;
  }
  static __device__ __forceinline__ void clear(uint32_t at, uint32_t lane, int tokens, uint32_t valid) {
    for (uint32_t i = valid * kRow / 4 + lane; i < tokens * kRow / 4; i += 32) store_word(at + 4 * i, 0);
  }
  // Adds the values of four KV entries with weights p0 and p1: rows a and a + kPair, and both of these +
  // kOther.
  template <uint32_t kPair, uint32_t kOther>
  static __device__ __forceinline__ void values(uint32_t at, uint32_t lane, uint32_t a, uint32_t p0,
                                                uint32_t p1, PackedPartial<kDim>* part) {
    const uint32_t g = lane / 4, first = at + a * kRow;
    const uint32_t row[4] = {first, first + kPair * kRow, first + kOther * kRow,
                             first + (kPair + kOther) * kRow};
    uint32_t scales[4][(kGroups + 1) / 2], zero[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      load_pairs<kGroups>(row[i] + kCodes, scales[i]);
      zero[i] = static_cast<int>(g) < kGroups ? load_u16(row[i] + kZeros + 2 * g) : 0;
    }
    multiply_add_fp16(part->more, zero[0] | zero[1] << 16, kFp16One, zero[2] | zero[3] << 16, kFp16One, p0,
                      p1);
    const uint32_t up0 = multiply_fp16(p0, kFp16Up8), up1 = multiply_fp16(p1, kFp16Up8);
    // The bytes of two words that are this lane's channels of two KV entries.
    const uint32_t word = kBits == 4 ? g / 2 * 4 : g / 4 * 4;
    const uint32_t pick = kBits == 4 ? (g % 2 == 0 ? 0x5410 : 0x7632) : (g % 4) * 0x101 + 0x400;
#pragma unroll
    for (int block = 0; block < kDim / 32; ++block) {
      const int group = block * 32 / kScaleGroup;
      const uint32_t b0 = multiply_fp16(up0, pair_of(scales[0], scales[1], group));
      const uint32_t b1 = multiply_fp16(up1, pair_of(scales[2], scales[3], group));
      const uint32_t from = word + block * 4 * kBits;
      const uint32_t low = __byte_perm(load_word(row[0] + from), load_word(row[1] + from), pick);
      const uint32_t high = __byte_perm(load_word(row[2] + from), load_word(row[3] + from), pick);
      if constexpr (kBits == 4) {
        const uint32_t low8 = low >> 8, high8 = high >> 8;
        multiply_add_fp16(part->out[2 * block], low & 0x000f000f, low & 0x00f000f0, high & 0x000f000f,
                          high & 0x00f000f0, b0, b1);
        multiply_add_fp16(part->out[2 * block + 1], low8 & 0x000f000f, low8 & 0x00f000f0, high8 & 0x000f000f,
                          high8 & 0x00f000f0, b0, b1);
      } else {
        multiply_add_fp16(part->out[2 * block], low & 0x00030003, low & 0x000c000c, high & 0x00030003,
                          high & 0x000c000c, b0, b1);
        multiply_add_fp16(part->out[2 * block + 1], low & 0x00300030, low & 0x00c000c0, high & 0x00300030,
                          high & 0x00c000c0, b0, b1);
      }
    }
  }
};

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_PACKED_PACKED_ROWS_TOKENS_CUH_
