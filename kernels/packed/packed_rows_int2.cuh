// int2 pages: keys per channel in groups of tokens, values per token. See packed_rows.cuh.

#ifndef KVTWIN_KERNELS_PACKED_PACKED_ROWS_INT2_CUH_
#define KVTWIN_KERNELS_PACKED_PACKED_ROWS_INT2_CUH_

#include "kernels/packed/packed_rows_tokens.cuh"

namespace kvtwin::device {

template <int kDim, int kScaleGroup>
struct RowsInt2 {
  using Rows = TokenRows<kDim, kScaleGroup, 2>;
  static constexpr int kTokens = kScaleGroup == 128 ? 128 : 64, kTiles = kTokens / 16;
  static constexpr int kTilesPerAdd = kScaleGroup / 16, kGroups = kTokens / kScaleGroup;
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

  // q[2 kt], q[2 kt + 1]: channels 16 kt + 4 t and the next three.
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
                                                 float (&add)[kGroups][2]) {
    const uint32_t g = lane / 4, t = lane % 4;
    const uint32_t pick = g / 2 * 0x101 + 0x400;  // byte g / 2 of two channels' words
#pragma unroll 1
    for (uint32_t codes = at; codes < at + kGroups * kGroupBytes; codes += kGroupBytes) {
      const uint32_t pairs = codes + kDim * kChannel + 8 * t;
      uint32_t scaled[kDim / 8];
      float zeros[4] = {};
#pragma unroll
      for (int kt = 0; kt < kDim / 16; ++kt) {
        const uint2 scale = load_words2(pairs + 32 * kt), zero = load_words2(pairs + 2 * kDim + 32 * kt);
        multiply_add_fp16(zeros, zero.x, zero.x, zero.y, zero.y, q[2 * kt], q[2 * kt + 1]);
        scaled[2 * kt] = multiply_fp16(q[2 * kt], scale.x);
        scaled[2 * kt + 1] = multiply_fp16(q[2 * kt + 1], scale.y);
      }
      add[0][0] = zeros[0] * scale2, add[0][1] = zeros[1] * scale2;
#pragma unroll
      for (int part = 0; part < kScaleGroup / 32; ++part) {
        const int mt = 2 * part;
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
      if constexpr (kGroups > 1) {
        rotate<kTilesPerAdd>(s);
        rotate<1>(add);
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
    uint32_t rest[2 * kTiles];
    copy(p, rest);
#pragma unroll 1
    for (uint32_t from = at; from < at + kTokens * Rows::kRow; from += 32 * Rows::kRow) {
#pragma unroll
      for (int mt = 0; mt < 2; ++mt) {
        const uint32_t p0 = transpose(rest[2 * mt]), p1 = transpose(rest[2 * mt + 1]);
        // Rows 2 t, 2 t + 1 of P are bytes t and t + 4, that is KV entries 4 t and 4 t + 16; the other half
        // is one KV entry further.
        Rows::template values<16, 1>(from, lane, 4 * (lane % 4) + 2 * mt, p0, p1, part);
      }
      rotate<4>(rest);
    }
  }
};

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_PACKED_PACKED_ROWS_INT2_CUH_
