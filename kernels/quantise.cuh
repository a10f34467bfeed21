// The quantiser of METHODS 4.2 in registers, to the bit that pack_ref.cc has: affine_of, code_of, value_of.

#ifndef KVTWIN_KERNELS_QUANTISE_CUH_
#define KVTWIN_KERNELS_QUANTISE_CUH_

#include <cuda_fp16.h>

#include "kernels/cuda_primitives.cuh"

namespace kvtwin::device {

// What the values of a group share, and how they become codes: about six instructions a number.
//
//   fast   q = saturate(x / span - zero / span) by one multiply-add, the code rint(q * top) by a second one,
//   and
//          a third that says how far it was rounded
//   exact  a division, as the definition has it; where the fast one's error could decide a tie
template <int kBits>
struct Quantiser {
  static constexpr float kTop = (1 << kBits) - 1;
  static constexpr float kHalfMax = 65504;
  // Adding it rounds to an integer, ties to even, and leaves that in the low bits.
  static constexpr float kRound = 12582912;
  static constexpr uint32_t kRoundBits = 0x4b400000;

  __half scale, zero;
  float by = 0, from = 0;  // 1 / span, -zero / span
  float sure = 0;          // how far may be rounded without a doubt

  __device__ Quantiser(float low, float high) {
    const bool wide = low < -kHalfMax || high > kHalfMax;  // then numbers count as fp16's ends
    low = fminf(fmaxf(low, -kHalfMax), kHalfMax), high = fminf(fmaxf(high, -kHalfMax), kHalfMax);
    scale = __float2half_rn(__fdiv_rn(__fsub_rn(high, low), kTop));
    zero = __float2half_rn(__fadd_rn(low, 0.f));
    const float span = __fmul_rn(__half2float(scale), kTop), wide_zero = __half2float(zero);
    if (span == 0) return;  // q is 0 for all
    by = __frcp_rn(span), from = -wide_zero * by;
    // q is off by 2^-24 of each of its terms at most, times kTop; and a little more from the rounding above.
    sure = wide ? -1 : 0.49999f - kTop * 4e-7f * fabsf(from);
  }

  __device__ __forceinline__ static float exact(float x, __half scale, __half zero) {
    const float off = __fsub_rn(fminf(fmaxf(x, -kHalfMax), kHalfMax), __half2float(zero));
    return __fadd_rn(fminf(fmaxf(__fdiv_rn(off, __half2float(scale)), 0.f), kTop), kRound);
  }
  // Codes of kCount numbers, each in the low bits of kRoundBits + code.
  template <int kCount>
  __device__ __forceinline__ void codes(const float (&x)[kCount], uint32_t (&out)[kCount]) const {
    float rounded[kCount];
    bool doubt = false;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float q = __saturatef(fmaf(x[i], by, from));
      rounded[i] = fmaf(q, kTop, kRound);
      doubt |= fabsf(fmaf(q, kTop, kRound - rounded[i])) > sure;
    }
    if (doubt) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) rounded[i] = exact(x[i], scale, zero);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) out[i] = __float_as_uint(rounded[i]);
  }
};

// The product is exact, so that one rounding is that of pack_ref.cc.
__device__ __forceinline__ float value_of(uint32_t code, float scale, float zero) {
  return fmaf(static_cast<float>(code), scale, zero);
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_QUANTISE_CUH_
