// Formats of the byte layouts of METHODS 4.3 (pack.h): what a warp does with a block. See packed_math.cuh.
//
// Tensor cores contract pairs along the shared dimension, but bytes hold neighbours along the other one, so
// words of two cells (or channels) are put together with one byte permutation before the masks. Channels and
// cells are permuted freely: a lane takes what lies in its own word, and the other operand follows.
//   int4 keys    word t of a group of 32 channels, rows g and g + 8: fields are channels 8 t + (0,4), (1,5),
//   ... values       of 32 channels lane g has 4 g .. 4 g + 3 (half a word of int4, a byte of int2, a word of
//   fp8):
//                two tiles, so `channel` is 32 (tile / 2) + 4 g + 2 (tile % 2) + half
//   int2 keys    of 32 cells lane g has the four of byte g / 2 + 4 (g % 2): two tiles, cells 4 byte + 2 tile
//   + half
// (g = lane / 4, t = lane % 4.) Int2 costs 5 integer instructions per 16 x 16 tile and side instead of 4.5,
// but 2 loads from shared memory a tile instead of a quarter: that is its limit.

#ifndef KVTWIN_KERNELS_PACKED_ROWS_CUH_
#define KVTWIN_KERNELS_PACKED_ROWS_CUH_

#include "kernels/packed_math.cuh"

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

// Rows of one token: `kBits` a channel, then kGroups scales, then as many zeros.
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
  // The values of four cells, which p0 and p1 weigh: a and kPair behind it, and both kOther behind.
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
    // Which bytes of two words are this lane's channels of two cells.
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
        const uint32_t low8 = shift_by_8(low), high8 = shift_by_8(high);
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

template <int kDim, int kScaleGroup>
struct RowsInt4 {
  using Rows = TokenRows<kDim, kScaleGroup, 4>;
  static constexpr bool kRecords = false;
  static constexpr int kTokens = 64, kTiles = 4, kTilesPerAdd = 4;
  static constexpr bool kParityCounts = false;
  static constexpr int kGroups = Rows::kGroups;
  static constexpr uint32_t kSlot = kTokens * Rows::kRow;

  static __host__ __device__ constexpr float key_factor(int, int) { return 1; }
  static __host__ __device__ constexpr float value_factor(int, int half) {
    return kCodeUnit / kUp8 * (half == 0 ? 1 : 0.0625f);
  }
  static __host__ __device__ constexpr uint32_t key_bytes(uint32_t tokens) { return tokens * Rows::kRow; }
  static __host__ __device__ constexpr uint32_t value_bytes(uint32_t tokens) { return tokens * Rows::kRow; }
  static __device__ __forceinline__ uint32_t pack(float low, float high) { return pack_fp16(low, high); }
  static __device__ __forceinline__ uint32_t token(int mt, int half, uint32_t lane) {
    return 16 * mt + 8 * half + lane / 4;
  }

  // q[4 block ...]: pairs of channels 32 block + 8 t + (0,4), (1,5) / 16, (2,6), (3,7) / 16. The last two:
  // sums of q over the groups 2 t, 2 t + 1, and what fp16 leaves of them.
  static __device__ __forceinline__ void load_query(const uint32_t* row, bool is_head, uint32_t lane,
                                                    uint32_t (&q)[kDim / 8 + 2]) {
    const uint32_t t = lane % 4;
    float sums[kGroups] = {};
#pragma unroll
    for (int block = 0; block < kDim / 32; ++block) {
      const uint4 none = {0, 0, 0, 0};
      const uint4 w = is_head ? __ldg(reinterpret_cast<const uint4*>(row + 16 * block + 4 * t)) : none;
      q[4 * block] = fp16_from_bf16(__byte_perm(w.x, w.z, 0x5410));
      q[4 * block + 1] = fp16_from_bf16(__byte_perm(w.x, w.z, 0x7632));
      q[4 * block + 2] = fp16_from_bf16(__byte_perm(w.y, w.w, 0x5410));
      q[4 * block + 3] = fp16_from_bf16(__byte_perm(w.y, w.w, 0x7632));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[block * 32 / kScaleGroup] += fp16_low(q[4 * block + i]) + fp16_high(q[4 * block + i]);
        if (i % 2 == 1) q[4 * block + i] = multiply_fp16(q[4 * block + i], kFp16Sixteenth);
      }
    }
    float mine[2] = {};
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      sums[i] += __shfl_xor_sync(kAllLanes, sums[i], 1);
      sums[i] += __shfl_xor_sync(kAllLanes, sums[i], 2);
      if (static_cast<uint32_t>(i / 2) == t) mine[i % 2] = sums[i];
    }
    q[kDim / 8] = pack_fp16(mine[0], mine[1]);
    q[kDim / 8 + 1] = pack_fp16(mine[0] - fp16_low(q[kDim / 8]), mine[1] - fp16_high(q[kDim / 8]));
  }

  static __device__ __forceinline__ float scores(uint32_t at, uint32_t lane, uint32_t (&q)[kDim / 8 + 2],
                                                 float scale2, float (&s)[kTiles][4], float (&add)[1][2]) {
    const uint32_t g = lane / 4, t = lane % 4;
    const float unit = scale2 * kCodeUnit;
#pragma unroll
    for (int mt = 0; mt < kTiles; ++mt) {
      const uint32_t row[2] = {at + (16 * mt + g) * Rows::kRow, at + (16 * mt + 8 + g) * Rows::kRow};
      uint32_t scales[2][(kGroups + 1) / 2], zero[2] = {0, 0};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        load_pairs<kGroups>(row[i] + Rows::kCodes, scales[i]);
        if (kGroups == 1) {
          if (t == 0) zero[i] = load_u16(row[i] + Rows::kZeros);
        } else if (static_cast<int>(2 * t) < kGroups) {
          zero[i] = load_word(row[i] + Rows::kZeros + 4 * t);
        }
      }
      multiply_add_fp16(s[mt], zero[0], zero[1], zero[0], zero[1], q[kDim / 8], q[kDim / 8 + 1]);
#pragma unroll
      for (int i = 0; i < 4; ++i) s[mt][i] *= scale2;
      float sum[4] = {};
#pragma unroll
      for (int block = 0; block < kDim / 32; ++block) {
        const uint32_t low = load_word(row[0] + 16 * block + 4 * t),
                       high = load_word(row[1] + 16 * block + 4 * t);
        const uint32_t low8 = shift_by_8(low), high8 = shift_by_8(high);
        multiply_add_fp16(sum, low & 0x000f000f, high & 0x000f000f, low & 0x00f000f0, high & 0x00f000f0,
                          q[4 * block], q[4 * block + 1]);
        multiply_add_fp16(sum, low8 & 0x000f000f, high8 & 0x000f000f, low8 & 0x00f000f0, high8 & 0x00f000f0,
                          q[4 * block + 2], q[4 * block + 3]);
        const int group = block * 32 / kScaleGroup;
        if ((block + 1) * 32 % kScaleGroup != 0 && block + 1 < kDim / 32) continue;  // its group goes on
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t pair = scales[i / 2][group / 2];
          s[mt][i] = fmaf(sum[i], unit * (group % 2 == 0 ? fp16_low(pair) : fp16_high(pair)), s[mt][i]);
          sum[i] = 0;
        }
      }
    }
    add[0][0] = add[0][1] = 0;
    return 1;
  }

  static __device__ __forceinline__ float reserve(uint32_t at, uint32_t lane, uint32_t) {
    return Rows::reserve(at, lane, kTokens);
  }
  static __device__ __forceinline__ void clear(uint32_t at, uint32_t lane, uint32_t, uint32_t valid) {
    Rows::clear(at, lane, kTokens, valid);
  }
  static __device__ __forceinline__ void values(uint32_t at, uint32_t lane, uint32_t,
                                                const uint32_t (&p)[2 * kTiles], PackedPartial<kDim>* part) {
#pragma unroll
    for (int mt = 0; mt < kTiles; ++mt) {
      const uint32_t p0 = transpose(p[2 * mt]), p1 = transpose(p[2 * mt + 1]);
      Rows::template values<1, 8>(at, lane, 16 * mt + 2 * (lane % 4), p0, p1, part);
    }
  }
};

template <int kDim, int kScaleGroup>
struct RowsInt2 {
  using Rows = TokenRows<kDim, kScaleGroup, 2>;
  static constexpr bool kRecords = false;
  static constexpr int kTokens = kScaleGroup == 128 ? 128 : 64, kTiles = kTokens / 16;
  static constexpr int kTilesPerAdd = kScaleGroup / 16;
  static constexpr bool kParityCounts = true;
  static constexpr uint32_t kChannel = kScaleGroup / 4;  // bytes of a channel's codes
  static constexpr uint32_t kGroupBytes = kDim * (kChannel + kScaleZeroBytes);
  static constexpr uint32_t kSlot = kTokens / kScaleGroup * kGroupBytes > kTokens* Rows::kRow
                                        ? kTokens / kScaleGroup* kGroupBytes
                                        : kTokens* Rows::kRow;

  static __host__ __device__ constexpr float key_factor(int odd, int half) {
    return (odd == 0 ? 1 : 0.0625f) * (half == 0 ? 1 : 0.25f);
  }
  static __host__ __device__ constexpr float value_factor(int odd, int half) {
    return kCodeUnit / kUp8 * key_factor(odd, half);
  }
  static __host__ __device__ constexpr uint32_t key_bytes(uint32_t tokens) {
    return tokens / kScaleGroup * kGroupBytes;
  }
  static __host__ __device__ constexpr uint32_t value_bytes(uint32_t tokens) { return tokens * Rows::kRow; }
  static __device__ __forceinline__ uint32_t pack(float low, float high) { return pack_fp16(low, high); }
  static __device__ __forceinline__ uint32_t token(int mt, int half, uint32_t lane) {
    return mt / 2 * 32 + 4 * (lane / 8 + lane / 4 % 2 * 4) + mt % 2 * 2 + half;
  }

  // q[2 kt], q[2 kt + 1]: channels 16 kt + 4 t and the three behind it.
  static __device__ __forceinline__ void load_query(const uint32_t* row, bool is_head, uint32_t lane,
                                                    uint32_t (&q)[kDim / 8 + 2]) {
#pragma unroll
    for (int kt = 0; kt < kDim / 16; ++kt) {
      const uint2 none = {0, 0};
      const uint2 w = is_head ? __ldg(reinterpret_cast<const uint2*>(row + 8 * kt + lane % 4 * 2)) : none;
      q[2 * kt] = fp16_from_bf16(w.x), q[2 * kt + 1] = fp16_from_bf16(w.y);
    }
  }

  static __device__ __forceinline__ float scores(uint32_t at, uint32_t lane, uint32_t (&q)[kDim / 8 + 2],
                                                 float scale2, float (&s)[kTiles][4],
                                                 float (&add)[kTiles / kTilesPerAdd][2]) {
    const uint32_t g = lane / 4, t = lane % 4;
    const uint32_t pick = g / 2 * 0x101 + 0x400;  // byte g / 2 of two channels' words
#pragma unroll
    for (int group = 0; group < kTokens / kScaleGroup; ++group) {
      const uint32_t codes = at + group * kGroupBytes, pairs = codes + kDim * kChannel + 8 * t;
      uint32_t scaled[kDim / 8];
      float zeros[4] = {};
#pragma unroll
      for (int kt = 0; kt < kDim / 16; ++kt) {
        const uint2 scale = load_words2(pairs + 32 * kt), zero = load_words2(pairs + 2 * kDim + 32 * kt);
        multiply_add_fp16(zeros, zero.x, zero.x, zero.y, zero.y, q[2 * kt], q[2 * kt + 1]);
        scaled[2 * kt] = multiply_fp16(q[2 * kt], scale.x);
        scaled[2 * kt + 1] = multiply_fp16(q[2 * kt + 1], scale.y);
      }
      add[group][0] = zeros[0] * scale2, add[group][1] = zeros[1] * scale2;
#pragma unroll
      for (int part = 0; part < kScaleGroup / 32; ++part) {
        const int mt = (group * kScaleGroup + part * 32) / 16;
        const uint32_t mine = codes + part * 8 + g % 2 * 4 + 4 * t * kChannel;
#pragma unroll
        for (int kt = 0; kt < kDim / 16; ++kt) {
          const uint32_t from = mine + 16 * kt * kChannel;
          const uint32_t low = __byte_perm(load_word(from), load_word(from + kChannel), pick);
          const uint32_t high =
              __byte_perm(load_word(from + 2 * kChannel), load_word(from + 3 * kChannel), pick);
          multiply_add_fp16(s[mt], low & 0x00030003, low & 0x000c000c, high & 0x00030003, high & 0x000c000c,
                            scaled[2 * kt], scaled[2 * kt + 1]);
          multiply_add_fp16(s[mt + 1], low & 0x00300030, low & 0x00c000c0, high & 0x00300030,
                            high & 0x00c000c0, scaled[2 * kt], scaled[2 * kt + 1]);
        }
      }
    }
    return scale2 * kCodeUnit;
  }

  static __device__ __forceinline__ float reserve(uint32_t at, uint32_t lane, uint32_t) {
    return Rows::reserve(at, lane, kTokens);
  }
  static __device__ __forceinline__ void clear(uint32_t at, uint32_t lane, uint32_t, uint32_t valid) {
    Rows::clear(at, lane, kTokens, valid);
  }
  static __device__ __forceinline__ void values(uint32_t at, uint32_t lane, uint32_t,
                                                const uint32_t (&p)[2 * kTiles], PackedPartial<kDim>* part) {
#pragma unroll
    for (int mt = 0; mt < kTiles; ++mt) {
      const uint32_t p0 = transpose(p[2 * mt]), p1 = transpose(p[2 * mt + 1]);
      // Rows 2 t, 2 t + 1 of P are bytes t and t + 4: cells 4 t and 16 on; the other half: one cell on.
      Rows::template values<16, 1>(at, lane, mt / 2 * 32 + 4 * (lane % 4) + mt % 2 * 2, p0, p1, part);
    }
  }
};

// One byte a channel, no scales.
template <int kDim>
struct RowsFp8 {
  static constexpr bool kRecords = false;
  static constexpr int kTokens = 32, kTiles = 2, kTilesPerAdd = 2;
  static constexpr bool kParityCounts = false;
  static constexpr uint32_t kSlot = kTokens * kDim;

  static __host__ __device__ constexpr float key_factor(int, int) { return 1; }
  static __host__ __device__ constexpr float value_factor(int, int) { return 1; }
  static __host__ __device__ constexpr uint32_t key_bytes(uint32_t tokens) { return tokens * kDim; }
  static __host__ __device__ constexpr uint32_t value_bytes(uint32_t tokens) { return tokens * kDim; }
  static __device__ __forceinline__ uint32_t pack(float low, float high) { return pack_fp16(low, high); }
  static __device__ __forceinline__ uint32_t token(int mt, int half, uint32_t lane) {
    return 16 * mt + 8 * half + lane / 4;
  }

  // q[2 kt], q[2 kt + 1]: channels 64 (kt / 4) + 16 t + 4 (kt % 4) and the three behind it.
  static __device__ __forceinline__ void load_query(const uint32_t* row, bool is_head, uint32_t lane,
                                                    uint32_t (&q)[kDim / 8 + 2]) {
#pragma unroll
    for (int kt = 0; kt < kDim / 16; ++kt) {
      const uint2 none = {0, 0};
      const uint32_t channel = 64 * (kt / 4) + lane % 4 * 16 + 4 * (kt % 4);
      const uint2 w = is_head ? __ldg(reinterpret_cast<const uint2*>(row + channel / 2)) : none;
      q[2 * kt] = fp16_from_bf16(w.x), q[2 * kt + 1] = fp16_from_bf16(w.y);
    }
  }
  static __device__ __forceinline__ float scores(uint32_t at, uint32_t lane, uint32_t (&q)[kDim / 8 + 2],
                                                 float scale2, float (&s)[kTiles][4], float (&add)[1][2]) {
#pragma unroll
    for (int mt = 0; mt < kTiles; ++mt) {
#pragma unroll
      for (int i = 0; i < kDim / 64; ++i) {
        const uint32_t from = at + (16 * mt + lane / 4) * kDim + 64 * i + lane % 4 * 16;
        const uint4 low = load_words4(from), high = load_words4(from + 8 * kDim);
        const uint32_t a[4] = {low.x, low.y, low.z, low.w}, b[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          multiply_add_fp16(s[mt], fp16_from_e4m3(a[w]), fp16_from_e4m3(b[w]), fp16_from_e4m3(a[w] >> 16),
                            fp16_from_e4m3(b[w] >> 16), q[8 * i + 2 * w], q[8 * i + 2 * w + 1]);
        }
      }
    }
    add[0][0] = add[0][1] = 0;
    return scale2;
  }
  static __device__ __forceinline__ float reserve(uint32_t, uint32_t, uint32_t) { return 0; }
  static __device__ __forceinline__ void clear(uint32_t at, uint32_t lane, uint32_t, uint32_t valid) {
    for (uint32_t i = valid * kDim / 4 + lane; i < kSlot / 4; i += 32) store_word(at + 4 * i, 0);
  }
  static __device__ __forceinline__ void values(uint32_t at, uint32_t lane, uint32_t,
                                                const uint32_t (&p)[2 * kTiles], PackedPartial<kDim>* part) {
#pragma unroll
    for (int mt = 0; mt < kTiles; ++mt) {
      const uint32_t p0 = transpose(p[2 * mt]), p1 = transpose(p[2 * mt + 1]);
      multiply_add_fp16(part->more, 0, kFp16One, 0, kFp16One, p0, p1);
      const uint32_t row = at + (16 * mt + lane % 4 * 2) * kDim + lane / 4 * 4;
#pragma unroll
      for (int block = 0; block < kDim / 32; ++block) {
        const uint32_t w0 = load_word(row + 32 * block), w1 = load_word(row + kDim + 32 * block);
        const uint32_t w2 = load_word(row + 8 * kDim + 32 * block),
                       w3 = load_word(row + 9 * kDim + 32 * block);
        // Bytes 0 and 1 of both cells, channel by channel; then bytes 2 and 3.
        const uint32_t a = __byte_perm(w0, w1, 0x5140), b = __byte_perm(w2, w3, 0x5140);
        const uint32_t c = __byte_perm(w0, w1, 0x7362), d = __byte_perm(w2, w3, 0x7362);
        multiply_add_fp16(part->out[2 * block], fp16_from_e4m3(a), fp16_from_e4m3(a >> 16), fp16_from_e4m3(b),
                          fp16_from_e4m3(b >> 16), p0, p1);
        multiply_add_fp16(part->out[2 * block + 1], fp16_from_e4m3(c), fp16_from_e4m3(c >> 16),
                          fp16_from_e4m3(d), fp16_from_e4m3(d >> 16), p0, p1);
      }
    }
  }
};

template <int kDimension, int kScaleGroupOf>
struct RowsFamily {
  static constexpr int kDim = kDimension;
  static constexpr PackedLayout kLayout = PackedLayout::kRows;
  static constexpr uint32_t kScaleGroup = kScaleGroupOf;
  using Int2 = RowsInt2<kDim, kScaleGroupOf>;
  using Int4 = RowsInt4<kDim, kScaleGroupOf>;
  using Wide = RowsFp8<kDim>;
  static constexpr uint32_t kSlot = Int4::kSlot > Int2::kSlot ? Int4::kSlot : Int2::kSlot;
  static_assert(kSlot >= Wide::kSlot);

  static __device__ __forceinline__ uint32_t channel(uint32_t tile, uint32_t row) {
    return tile / 2 * 32 + row % 8 * 4 + tile % 2 * 2 + row / 8;
  }
  // Row `group` of `more` has the zeros of that group of channels.
  static __device__ __forceinline__ float zero_of(const float (&more)[4], int tile, int head, uint32_t lane) {
    return __shfl_sync(kAllLanes, more[head], tile * 16 / kScaleGroupOf * 4 + lane % 4);
  }
};

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_PACKED_ROWS_CUH_
