// KIVI's KV entries: int2 rows (packed_rows_int2.cuh), and bf16 pages for entries whose values are not
// packed. The order of channels is that of int2's values.

#ifndef KVTWIN_KERNELS_PACKED_PACKED_ROWS_KIVI_CUH_
#define KVTWIN_KERNELS_PACKED_PACKED_ROWS_KIVI_CUH_

#include "kernels/packed/packed_fast.cuh"
#include "kernels/packed/packed_rows.cuh"

namespace kvtwin::device {

// As Bf16Format, but a load of values has two channels: a tile has the channels of RowsFamily.
template <int kDim>
struct RowsBf16 : Bf16Format<kDim> {
  using Plain = Bf16Format<kDim>;

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
      for (int i = 0; i < 4; ++i)
        w[i] = load_words2(at + Plain::chunk(row[i], 4 * block + g / 2) + g % 2 * 8);
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
