// int4 rows, keys and values per token. See packed_rows.cuh.

#ifndef KVTWIN_KERNELS_PACKED_PACKED_ROWS_INT4_CUH_
#define KVTWIN_KERNELS_PACKED_PACKED_ROWS_INT4_CUH_

#include "kernels/packed/packed_rows_tokens.cuh"

namespace kvtwin::device {

template <int kDim, int kScaleGroup>
struct RowsInt4 {
  using Rows = TokenRows<kDim, kScaleGroup, 4>;
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

  // q[4 block ...]: pairs of channels 32 block + 8 t + (0,4), (1,5) / 16, (2,6), (3,7) / 16. The last two are
  // sums of q over the groups 2 t, 2 t + 1, and their fp16 rounding errors.
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

  // Logits of the KV entries of row `from` and of the row 8 below.
  static __device__ __forceinline__ void scores_of(uint32_t from, uint32_t t,
                                                   const uint32_t (&q)[kDim / 8 + 2], float scale2,
                                                   float (&s)[4]) {
    const float unit = scale2 * kCodeUnit;
    const uint32_t row[2] = {from, from + 8 * Rows::kRow};
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
    multiply_add_fp16(s, zero[0], zero[1], zero[0], zero[1], q[kDim / 8], q[kDim / 8 + 1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] *= scale2;
    float sum[4] = {};
#pragma unroll
    for (int block = 0; block < kDim / 32; ++block) {
      const uint32_t low = load_word(row[0] + 16 * block + 4 * t),
                     high = load_word(row[1] + 16 * block + 4 * t);
      const uint32_t low8 = low >> 8, high8 = high >> 8;
      multiply_add_fp16(sum, low & 0x000f000f, high & 0x000f000f, low & 0x00f000f0, high & 0x00f000f0,
                        q[4 * block], q[4 * block + 1]);
      multiply_add_fp16(sum, low8 & 0x000f000f, high8 & 0x000f000f, low8 & 0x00f000f0, high8 & 0x00f000f0,
                        q[4 * block + 2], q[4 * block + 3]);
      const int group = block * 32 / kScaleGroup;
      if ((block + 1) * 32 % kScaleGroup != 0 && block + 1 < kDim / 32) continue;  // the group continues
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t pair = scales[i / 2][group / 2];
        s[i] = fmaf(sum[i], unit * (group % 2 == 0 ? fp16_low(pair) : fp16_high(pair)), s[i]);
        sum[i] = 0;
      }
    }
  }
  static __device__ __forceinline__ float scores(uint32_t at, uint32_t lane, uint32_t (&q)[kDim / 8 + 2],
                                                 float scale2, float (&s)[kTiles][4], float (&add)[1][2]) {
    const uint32_t g = lane / 4, t = lane % 4;
    // Two tiles per iteration: fully unrolled, int4 and int2 together exceed the instruction cache.
#pragma unroll 1
    for (uint32_t from = at + g * Rows::kRow; from < at + kTokens * Rows::kRow; from += 32 * Rows::kRow) {
#pragma unroll
      for (int mt = 0; mt < 2; ++mt) scores_of(from + 16 * mt * Rows::kRow, t, q, scale2, s[mt]);
      rotate<2>(s);
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
    uint32_t rest[2 * kTiles];
    copy(p, rest);
#pragma unroll 1
    for (uint32_t from = at; from < at + kTokens * Rows::kRow; from += 32 * Rows::kRow) {
#pragma unroll
      for (int mt = 0; mt < 2; ++mt) {
        const uint32_t p0 = transpose(rest[2 * mt]), p1 = transpose(rest[2 * mt + 1]);
        Rows::template values<1, 8>(from, lane, 16 * mt + 2 * (lane % 4), p0, p1, part);
      }
      rotate<4>(rest);
    }
  }
};

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_PACKED_PACKED_ROWS_INT4_CUH_
