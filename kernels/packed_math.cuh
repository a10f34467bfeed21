// What every packed format does alike: codes that are multiplied as they are, and the running softmax.
//
// Codes are never converted. A field of w & 0x000f000f (or another mask within the low ten bits of each half)
// is a pair of fp16 *subnormals*, code * 2^-24 * (1, 4, 16 or 64, where it lies in the half), which tensor
// cores multiply exactly. The powers of two are taken out afterwards: of columns of A together with the other
// operand, of rows of A together with the result (`key_factor`, `value_factor`). So int4 costs 5 integer
// instructions per 8 codes and int2 9 per 16. Scales never touch codes either:
//   keys per channel   q' = q * scale once per group; zeros: sum_c q_c zero_c by a tensor-core row
//   keys per token     sums of a group of channels are multiplied by its scale (32 numbers per 16 x 128
//   codes) values             p' = p * scale; zeros: sum_t p_t zero_t by a tensor-core row, next to the sum
//   of p
//
// p is exp2(logit - ref) with ref 6 to 8 above... below the largest logit so far, so at most 2^8: fp16 then
// still resolves cells whose weight is 2^-30 of the largest. Values scales of 2 and more raise `ref` such
// that p * scale stays in fp16's range: any scale is right.

#ifndef KVTWIN_KERNELS_PACKED_MATH_CUH_
#define KVTWIN_KERNELS_PACKED_MATH_CUH_

#include "kernels/attention_decode_merge.cuh"

namespace kvtwin::device {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kCodeUnit = 16777216.f;  // 2^24: a code as fp16 is code / 2^24
constexpr uint32_t kFp16One = 0x3c003c00, kFp16Sixteen = 0x4c004c00, kFp16Sixteenth = 0x2c002c00;
constexpr float kRoom = 8, kRaiseTo = 6;  // p <= 2^kRoom; a new largest logit has p = 2^kRaiseTo

// Of one sequence, by lane, as Partial has it; sums are whole ones, not this lane's only. `more` is the
// accumulator of the tensor-core rows that values have besides: more[0..1] of row lane / 4 zeros of a group
// (or of all channels), more[2..3] the sum of p.
template <int kDim>
struct PackedPartial {
  float out[kDim / 16][4] = {};
  float more[4] = {};
  float ref[2] = {-1e30f, -1e30f};

  // `top`: the largest logits of this lane's cells of heads lane % 4 * 2, + 1; `reserve` as block_reserve().
  __device__ __forceinline__ void raise(float (&top)[2], float reserve) {
    if (!__any_sync(kAllLanes, top[0] + reserve > ref[0] + kRoom || top[1] + reserve > ref[1] + kRoom))
      return;
#pragma unroll
    for (int by = 4; by < 32; by *= 2) {
      top[0] = fmaxf(top[0], __shfl_xor_sync(kAllLanes, top[0], by));
      top[1] = fmaxf(top[1], __shfl_xor_sync(kAllLanes, top[1], by));
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float higher = fmaxf(ref[h], top[h] + reserve - kRaiseTo);
      const float by = exp2_fast(ref[h] - higher);
      ref[h] = higher;
      more[h] *= by, more[h + 2] *= by;
#pragma unroll
      for (int mt = 0; mt < kDim / 16; ++mt) out[mt][h] *= by, out[mt][h + 2] *= by;
    }
  }

  __device__ __forceinline__ Partial<kDim> result() const {
    Partial<kDim> result;
    const bool mine = threadIdx.x % 32 < 4;  // the sum is in all rows: it counts once
#pragma unroll
    for (int mt = 0; mt < kDim / 16; ++mt) {
#pragma unroll
      for (int i = 0; i < 4; ++i) result.out[mt][i] = out[mt][i];
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) result.max[h] = ref[h], result.sum[h] = mine ? more[h + 2] : 0;
    return result;
  }
};

// A format's side of a block: kTiles tiles of 16 cells. Raw sums `s` of cell row r of tile mt become logits
// (base 2) s * factor * key_factor(mt, r / 8) + add[mt / kTilesPerAdd]; then p, in place.
template <class Format, int kDim>
__device__ __forceinline__ void soften(float (&s)[Format::kTiles][4],
                                       const float (&add)[Format::kTiles / Format::kTilesPerAdd][2],
                                       float factor, float reserve, PackedPartial<kDim>* part) {
  float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int a = 0; a < Format::kTiles / Format::kTilesPerAdd; ++a) {
#pragma unroll
    for (int kind = 0; kind < 4; ++kind) {  // tiles of one parity, rows of one half: one factor
      const int odd = kind / 2, half = kind % 2;
      if (!Format::kParityCounts && odd == 1) continue;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float most = -INFINITY;
#pragma unroll
        for (int i = 0; i < Format::kTilesPerAdd; ++i) {
          const int mt = a * Format::kTilesPerAdd + i;
          if (!Format::kParityCounts || mt % 2 == odd) most = fmaxf(most, s[mt][2 * half + h]);
        }
        top[h] = fmaxf(top[h], fmaf(most, factor * Format::key_factor(odd, half), add[a][h]));
      }
    }
  }
  part->raise(top, reserve);
#pragma unroll
  for (int mt = 0; mt < Format::kTiles; ++mt) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float by = add[mt / Format::kTilesPerAdd][i % 2] - part->ref[i % 2];
      s[mt][i] = exp2_fast(fmaf(s[mt][i], factor * Format::key_factor(mt % 2, i / 2), by));
    }
  }
}

// How far p must stay below 2^kRoom so that p * scale < 2^(kRoom + bits) for the largest scale: `scales` are
// this lane's part of a block's (positive fp16 pairs, or'ed together where `any` is asked; no cost below 2).
__device__ __forceinline__ bool has_large_scale(uint32_t ored_scales) {
  return __any_sync(kAllLanes, (ored_scales & 0x40004000u) != 0);
}
__device__ __forceinline__ float reserve_of(uint32_t largest_pair, int bits) {
  float most = fmaxf(fp16_low(largest_pair), fp16_high(largest_pair));
  most = warp_max(most);
  const int exponent = static_cast<int>(__float_as_uint(most) >> 23) - 126;  // most < 2^exponent
  return static_cast<float>(max(0, exponent - bits));
}
__device__ __forceinline__ uint32_t max_fp16(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("max.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_PACKED_MATH_CUH_
