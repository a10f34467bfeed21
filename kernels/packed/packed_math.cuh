// Common to all packed formats: products of codes without conversion, and the online softmax.
//
// Codes are never converted. A field of w & 0x000f000f (or another mask within the low ten bits of each half)
// is a pair of fp16 *subnormals*, code * 2^-24 * (1, 4, 16 or 64, by position in the half), which tensor
// cores multiply exactly. The powers of two are removed later: those of columns of A with the other operand,
// those of rows of A with the result (`key_factor`, `value_factor`). int4 thus takes 5 integer instructions
// per 8 codes and int2 9 per
// 16. Scales are not applied to codes either:
//
// Keys per channel: q' = q * scale once per group; zeros: sum_c q_c zero_c by a tensor-core row.
//
// Keys per token: the sums of a group of channels are multiplied by its scale, 32 numbers per 16 x 128 codes.
//
// Values: p' = p * scale; zeros: sum_t p_t zero_t by a tensor-core row, next to the sum of p.
//
// p is exp2(logit - ref), below 2. An overflow shows in one bit of the OR of all fp16 pairs, a quarter of the
// cost of a search for the largest logit; only then is `ref` raised and p recomputed. Before p is multiplied
// by a value's scale it is multiplied by 2^8 (exact), so that fp16 resolves small weights: KV entries count
// down to 2^-24 of the largest weight. Value scales of 2 and more raise `ref` so far that the product stays
// in fp16's range; there is no limit on scales.

#ifndef KVTWIN_KERNELS_PACKED_PACKED_MATH_CUH_
#define KVTWIN_KERNELS_PACKED_PACKED_MATH_CUH_

#include "kernels/attention/attention_decode_merge.cuh"

namespace kvtwin::device {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kCodeUnit = 16777216.f;  // 2^24: a code as fp16 is code / 2^24
constexpr uint32_t kFp16One = 0x3c003c00, kFp16Sixteenth = 0x2c002c00;
constexpr uint32_t kFp16Up8 = 0x5c005c00;  // 2^8
constexpr float kUp8 = 256;

// Partial result of one sequence by lane, as Partial, except that sums are complete. `more` is the
// accumulator of the additional tensor-core rows: more[0..1] of row lane / 4 are the zeros of a group (or of
// all channels), more[2..3] the sum of p.
template <int kDim>
struct PackedPartial {
  float out[kDim / 16][4] = {};
  float more[4] = {};
  float ref[2] = {-1e30f, -1e30f};

  // `top`: the largest logits of this lane's KV entries for heads lane % 4 * 2 and the next; `reserve`:
  // reserve_of().
  __device__ __forceinline__ void raise(float (&top)[2], float reserve) {
#pragma unroll
    for (int by = 4; by < 32; by *= 2) {
      top[0] = fmaxf(top[0], __shfl_xor_sync(kAllLanes, top[0], by));
      top[1] = fmaxf(top[1], __shfl_xor_sync(kAllLanes, top[1], by));
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float higher = fmaxf(ref[h], top[h] + reserve);
      const float by = exp2_fast(ref[h] - higher);
      ref[h] = higher;
      more[h] *= by, more[h + 2] *= by;
#pragma unroll
      for (int mt = 0; mt < kDim / 16; ++mt) out[mt][h] *= by, out[mt][h + 2] *= by;
    }
  }

  __device__ __forceinline__ Partial<kDim> result() const {
    Partial<kDim> result;
    const bool mine = threadIdx.x % 32 < 4;  // all rows hold the sum: it counts once
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

// The logits (base 2) of KV entry row r of tile mt are s * factor * key_factor(mt, r / 8) +
// add[mt / kTilesPerAdd], with raw sums `s`.
template <class Format>
__device__ __forceinline__ void find_top(const float (&s)[Format::kTiles][4],
                                         const float (&add)[Format::kTiles / Format::kTilesPerAdd][2],
                                         float factor, float (&top)[2]) {
  top[0] = top[1] = -INFINITY;
#pragma unroll
  for (int mt = 0; mt < Format::kTiles; ++mt) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float by = factor * Format::key_factor(mt % 2, i / 2);
      top[i % 2] = fmaxf(top[i % 2], fmaf(s[mt][i], by, add[mt / Format::kTilesPerAdd][i % 2]));
    }
  }
}
// Computes p as pairs of heads: p[2 mt] of rows lane / 4, p[2 mt + 1] of the rows 8 below. Returns the OR of
// all.
template <class Format>
__device__ __forceinline__ uint32_t weigh(const float (&s)[Format::kTiles][4],
                                          const float (&add)[Format::kTiles / Format::kTilesPerAdd][2],
                                          float factor, const float (&ref)[2],
                                          uint32_t (&p)[2 * Format::kTiles]) {
  uint32_t all = 0;
#pragma unroll
  for (int mt = 0; mt < Format::kTiles; ++mt) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float by = add[mt / Format::kTilesPerAdd][h] - ref[h];
        x[h] = exp2_fast(fmaf(s[mt][2 * half + h], factor * Format::key_factor(mt % 2, half), by));
      }
      p[2 * mt + half] = Format::pack(x[0], x[1]);
      all |= p[2 * mt + half];
    }
  }
  return all;
}
template <class Format, int kDim>
__device__ __forceinline__ void softmax_tile(const float (&s)[Format::kTiles][4],
                                             const float (&add)[Format::kTiles / Format::kTilesPerAdd][2],
                                             float factor, float reserve, PackedPartial<kDim>* part,
                                             uint32_t (&p)[2 * Format::kTiles]) {
  const uint32_t all = weigh<Format>(s, add, factor, part->ref, p);
  if (!__any_sync(kAllLanes, (all & 0x40004000u) != 0) && reserve == 0)
    return;  // all p are below 2, in fp16 and bf16
  float top[2];
  find_top<Format>(s, add, factor, top);
  part->raise(top, reserve);
  weigh<Format>(s, add, factor, part->ref, p);
}

// Number of powers of two by which p must stay below 1 if the largest scale of a block is not below 2^bits.
// Scales are positive fp16; the OR over all lanes shows whether any is 2 or more.
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

#endif  // KVTWIN_KERNELS_PACKED_PACKED_MATH_CUH_
