// fp4 rows (E2M1, 16 channels of a token share a power of two; pack_low_bit.h), keys and values per token.
//
// Codes need no conversion, which sm_90 does not have for E2M1: with the sign at bit 15 and the other three
// bits at bits 8 to 6, a code is a bf16 of code * 2^-126, subnormals included, which tensor cores multiply
// exactly. That is 12 integer instructions for the 8 codes of a lane in a 16 x 16 tile (int4: 5), which bound
// this format.
//
// Blocks of 16 channels are the tiles of both products. With g = lane / 4 and t = lane % 4:
//   keys    of a block lane t has channels 4 t to 4 t + 3; a block's sums are multiplied by its power of two
//   in fp32 values  of a block lane g has byte g: `channel` is 16 tile + 2 g + half; weights are multiplied
//   by the powers of
//           two, which is exact in bf16
//
// Powers from 2^-80 to 2^36 are exact; E8M0's range is 2^-127 to 2^127, and blocks outside are lost.

#ifndef KVTWIN_KERNELS_PACKED_PACKED_ROWS_FP4_CUH_
#define KVTWIN_KERNELS_PACKED_PACKED_ROWS_FP4_CUH_

#include "kernels/packed/packed_rows_tokens.cuh"

namespace kvtwin::device {

// Factors of queries and powers that keep all products in fp32's range.
constexpr float kFp4Code = 0x1p126f, kFp4QueryUp = 0x1p100f;
constexpr uint32_t kFp4PowerUp = 90;

__device__ __forceinline__ uint32_t multiply_bf16(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}
// Two codes each, from the low bytes of both halves: from their low and from their high four bits. A
// multiplication moves the sign and the other bits to their places; it uses another pipe than masks and
// shifts.
__device__ __forceinline__ uint32_t bf16_of_low(uint32_t bytes) {
  return (bytes & 0x000f000fu) * 0x1040u & 0x81c081c0u;
}
__device__ __forceinline__ uint32_t bf16_of_high(uint32_t bytes) {
  return (bytes & 0x00f000f0u) * 0x104u & 0x81c081c0u;
}

template <int kDim>
struct RowsFp4 {
  static constexpr int kTokens = 64, kTiles = 4, kTilesPerAdd = 4;
  static constexpr int kBlocks = kDim / 16;
  static constexpr uint32_t kCodes = kDim / 2, kRow = kCodes + kBlocks;
  static constexpr uint32_t kSlot = kTokens * kRow;

  static __host__ __device__ constexpr float key_factor(int, int) { return 1; }
  static __host__ __device__ constexpr float value_factor(int, int) {
    return kFp4Code / static_cast<float>(uint64_t{1} << 45) / static_cast<float>(uint64_t{1} << 45);
  }
  static_assert(kFp4PowerUp == 90);
  static __host__ __device__ constexpr uint32_t key_bytes(uint32_t tokens) { return tokens * kRow; }
  static __host__ __device__ constexpr uint32_t value_bytes(uint32_t tokens) { return tokens * kRow; }
  static __device__ __forceinline__ uint32_t pack(float low, float high) { return pack_bf16(low, high); }
  static __device__ __forceinline__ uint32_t token(int mt, int half, uint32_t lane) {
    return 16 * mt + 8 * half + lane / 4;
  }

  // q[2 block], q[2 block + 1]: channels 16 block + 4 t + (0, 2) and + (1, 3).
  static __device__ __forceinline__ void load_query(const uint32_t* row, bool is_head, uint32_t lane,
                                                    uint32_t (&q)[kDim / 8 + 2]) {
    const uint32_t up = pack_bf16(kFp4QueryUp, kFp4QueryUp);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const uint2 none = {0, 0};
      const uint2 w = is_head ? __ldg(reinterpret_cast<const uint2*>(row + 8 * block + lane % 4 * 2)) : none;
      q[2 * block] = multiply_bf16(__byte_perm(w.x, w.y, 0x5410), up);
      q[2 * block + 1] = multiply_bf16(__byte_perm(w.x, w.y, 0x7632), up);
    }
  }

  // A row's powers of two, one byte per block.
  static __device__ __forceinline__ void load_powers(uint32_t row, uint32_t (&powers)[kBlocks / 4]) {
    if constexpr (kBlocks == 8) {
      const uint2 two = load_words2(row + kCodes);
      powers[0] = two.x, powers[1] = two.y;
    } else {
      powers[0] = load_word(row + kCodes);
    }
  }
  // 2^e of byte `block` in fp32.
  static __device__ __forceinline__ float power(const uint32_t (&powers)[kBlocks / 4], int block) {
    const int at = 8 * (block % 4);
    const uint32_t word = powers[block / 4];
    return __uint_as_float((at == 24 ? word >> 1 : word << (23 - at)) & 0x7f800000u);
  }

  // Sums of the KV entries of row `from` and of the row 8 below, times 2^-26.
  static __device__ __forceinline__ void scores_of(uint32_t from, uint32_t t,
                                                   const uint32_t (&q)[kDim / 8 + 2], float (&s)[4]) {
    const uint32_t row[2] = {from, from + 8 * kRow};
    const uint32_t word = t / 2 * 4, pick = t % 2 == 0 ? 0x1100 : 0x3322;
    uint32_t powers[2][kBlocks / 4];
    load_powers(row[0], powers[0]), load_powers(row[1], powers[1]);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const uint32_t a = __byte_perm(load_word(row[0] + 8 * block + word), 0, pick);
      const uint32_t b = __byte_perm(load_word(row[1] + 8 * block + word), 0, pick);
      float sum[4] = {};
      multiply_add(sum, {{bf16_of_low(a), bf16_of_low(b), bf16_of_high(a), bf16_of_high(b)}}, q[2 * block],
                   q[2 * block + 1]);
#pragma unroll
      for (int i = 0; i < 4; ++i) s[i] = fmaf(sum[i], power(powers[i / 2], block), s[i]);
    }
  }
  static __device__ __forceinline__ float scores(uint32_t at, uint32_t lane, uint32_t (&q)[kDim / 8 + 2],
                                                 float scale2, float (&s)[kTiles][4], float (&add)[1][2]) {
    const uint32_t g = lane / 4, t = lane % 4;
#pragma unroll 1
    for (uint32_t from = at + g * kRow; from < at + kTokens * kRow; from += 32 * kRow) {
#pragma unroll
      for (int mt = 0; mt < 2; ++mt) scores_of(from + 16 * mt * kRow, t, q, s[mt]);
      rotate<2>(s);
    }
    add[0][0] = add[0][1] = 0;
    return scale2 * (kFp4Code / kFp4QueryUp);
  }

  static __device__ __forceinline__ float reserve(uint32_t, uint32_t, uint32_t) { return 0; }
  static __device__ __forceinline__ void clear(uint32_t at, uint32_t lane, uint32_t, uint32_t valid) {
    for (uint32_t i = valid * kRow / 4 + lane; i < kTokens * kRow / 4; i += 32) store_word(at + 4 * i, 0);
  }

  // (2^e of byte `block` of a, of b) in bf16, times 2^kFp4PowerUp.
  static __device__ __forceinline__ uint32_t power_pair(const uint32_t (&a)[kBlocks / 4],
                                                        const uint32_t (&b)[kBlocks / 4], int block) {
    const uint32_t bytes = __byte_perm(a[block / 4], b[block / 4], 0x0400 + block % 4 * 0x0101) & 0x00ff00ffu;
    return bytes * 128 + kFp4PowerUp * 128 * 0x10001u;
  }
  // Values of the KV entries of rows first, first + 1, first + 8 and first + 9.
  static __device__ __forceinline__ void values_of(uint32_t first, uint32_t lane, uint32_t p0, uint32_t p1,
                                                   PackedPartial<kDim>* part) {
    constexpr uint32_t kBf16One = 0x3f803f80;
    const uint32_t g = lane / 4, word = g / 4 * 4, pick = g % 4 * 0x1111 + 0x4400;
    const uint32_t row[4] = {first, first + kRow, first + 8 * kRow, first + 9 * kRow};
    uint32_t powers[4][kBlocks / 4];
#pragma unroll
    for (int i = 0; i < 4; ++i) load_powers(row[i], powers[i]);
    multiply_add(part->more, {{0, kBf16One, 0, kBf16One}}, p0, p1);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const uint32_t from = word + 8 * block;
      const uint32_t low = __byte_perm(load_word(row[0] + from), load_word(row[1] + from), pick);
      const uint32_t high = __byte_perm(load_word(row[2] + from), load_word(row[3] + from), pick);
      multiply_add(part->out[block],
                   {{bf16_of_low(low), bf16_of_high(low), bf16_of_low(high), bf16_of_high(high)}},
                   multiply_bf16(p0, power_pair(powers[0], powers[1], block)),
                   multiply_bf16(p1, power_pair(powers[2], powers[3], block)));
    }
  }
  static __device__ __forceinline__ void values(uint32_t at, uint32_t lane, uint32_t,
                                                const uint32_t (&p)[2 * kTiles], PackedPartial<kDim>* part) {
    uint32_t rest[2 * kTiles];
    copy(p, rest);
#pragma unroll 1
    for (uint32_t from = at; from < at + kTokens * kRow; from += 32 * kRow) {
#pragma unroll
      for (int mt = 0; mt < 2; ++mt) {
        const uint32_t p0 = transpose(rest[2 * mt]), p1 = transpose(rest[2 * mt + 1]);
        values_of(from + (16 * mt + 2 * (lane % 4)) * kRow, lane, p0, p1, part);
      }
      rotate<4>(rest);
    }
  }
};

template <int kDimension>
struct Fp4Family {
  static constexpr int kDim = kDimension;
  static constexpr PackedLayout kLayout = PackedLayout::kFp4;
  static constexpr uint32_t kScaleGroup = 32;
  static constexpr uint32_t kParts = 1u << kPartHighPrecision;
  using Int2 = RowsFp4<kDim>;
  using Int4 = RowsFp4<kDim>;
  using Wide = RowsFp4<kDim>;
  static constexpr uint32_t kSlot = Wide::kSlot;

  static __device__ __forceinline__ uint32_t channel(uint32_t tile, uint32_t row) {
    return 16 * tile + row % 8 * 2 + row / 8;
  }
  static __device__ __forceinline__ float zero_of(const float (&)[4], int, int, uint32_t) { return 0; }
};

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_PACKED_PACKED_ROWS_FP4_CUH_
