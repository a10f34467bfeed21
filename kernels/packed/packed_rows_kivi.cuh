// KIVI's KV entries: int2 rows (packed_rows_int2.cuh), and bf16 pages for entries whose values are not
// packed. The order of channels is that of int2's values.

#ifndef KVTWIN_KERNELS_PACKED_PACKED_ROWS_KIVI_CUH_
#define KVTWIN_KERNELS_PACKED_PACKED_ROWS_KIVI_CUH_

#include "kernels/packed/packed_math.cuh"
#include "kernels/packed/packed_rows.cuh"

namespace kvtwin::device {

// bf16 rows, swizzled as in attention_decode.h. A load of values has two channels: a tile has the channels of
// RowsFamily.
template <int kDim>
struct RowsBf16 {
  static constexpr int kTokens = 16, kTiles = 1, kTilesPerAdd = 1;
  static constexpr bool kParityCounts = false;
  static constexpr uint32_t kSlot = 32 * kDim;

  static __host__ __device__ constexpr float key_factor(int, int) { return 1; }
  static __host__ __device__ constexpr float value_factor(int, int) { return 1; }
  static __device__ __forceinline__ uint32_t pack(float low, float high) { return pack_bf16(low, high); }
  static __host__ __device__ constexpr uint32_t key_bytes(uint32_t tokens) { return tokens * 2 * kDim; }
  static __host__ __device__ constexpr uint32_t value_bytes(uint32_t tokens) { return tokens * 2 * kDim; }
  static __device__ __forceinline__ uint32_t token(int, int half, uint32_t lane) {
    return 8 * half + lane / 4;
  }
  static __device__ __forceinline__ uint32_t chunk(uint32_t row, uint32_t number) {
    return row * 2 * kDim + (number ^ (row & 7)) * 16;
  }

  static __device__ __forceinline__ void load_query(const uint32_t* row, bool is_head, uint32_t lane,
                                                    uint32_t (&q)[kDim / 8 + 2]) {
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) q[i] = is_head ? __ldg(row + 4 * i + lane % 4) : 0;
  }
  static __device__ __forceinline__ float scores(uint32_t at, uint32_t lane, uint32_t (&q)[kDim / 8 + 2],
                                                 float scale2, float (&s)[1][4], float (&add)[1][2]) {
#pragma unroll
    for (int kt = 0; kt < kDim / 16; ++kt) {
      multiply_add(s[0], load_matrices(at + chunk(lane % 16, 2 * kt + lane / 16)), q[2 * kt], q[2 * kt + 1]);
    }
    add[0][0] = add[0][1] = 0;
    return scale2;
  }
  static __device__ __forceinline__ float reserve(uint32_t, uint32_t, uint32_t) { return 0; }
  static __device__ __forceinline__ void clear(uint32_t at, uint32_t lane, uint32_t, uint32_t valid) {
    for (uint32_t i = valid * kDim / 2 + lane; i < 8 * kDim; i += 32) store_word(at + 4 * i, 0);
  }
  static __device__ __forceinline__ void values(uint32_t at, uint32_t lane, uint32_t, const uint32_t (&p)[2],
                                                PackedPartial<kDim>* part) {
    constexpr uint32_t kBf16One = 0x3f803f80;
    const uint32_t p0 = transpose(p[0]), p1 = transpose(p[1]), g = lane / 4, t = lane % 4;
    multiply_add(part->more, Fragment4{{0, kBf16One, 0, kBf16One}}, p0, p1);
    const uint32_t row[4] = {2 * t, 2 * t + 1, 2 * t + 8, 2 * t + 9};
#pragma unroll
    for (int block = 0; block < kDim / 32; ++block) {
      uint2 w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i] = load_words2(at + chunk(row[i], 4 * block + g / 2) + g % 2 * 8);
      multiply_add(part->out[2 * block],
                   Fragment4{{__byte_perm(w[0].x, w[1].x, 0x5410), __byte_perm(w[0].x, w[1].x, 0x7632),
                              __byte_perm(w[2].x, w[3].x, 0x5410), __byte_perm(w[2].x, w[3].x, 0x7632)}},
                   p0, p1);
      multiply_add(part->out[2 * block + 1],
                   Fragment4{{__byte_perm(w[0].y, w[1].y, 0x5410), __byte_perm(w[0].y, w[1].y, 0x7632),
                              __byte_perm(w[2].y, w[3].y, 0x5410), __byte_perm(w[2].y, w[3].y, 0x7632)}},
                   p0, p1);
    }
  }
};

template <int kDim, int kScaleGroupOf>
struct KiviFamily : RowsFamily<kDim, kScaleGroupOf> {
  static constexpr PackedLayout kLayout = PackedLayout::kKivi;
  static constexpr uint32_t kParts = 1u << kPartInt2 | 1u << kPartHighPrecision;
  using Int2 = RowsInt2<kDim, kScaleGroupOf>;
  using Int4 = Int2;
  using Wide = RowsBf16<kDim>;
  static constexpr uint32_t kSlot = Int2::kSlot > Wide::kSlot ? Int2::kSlot : Wide::kSlot;
};

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_PACKED_PACKED_ROWS_KIVI_CUH_
