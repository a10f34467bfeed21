// The quantiser of docs/design/methods/triaxialkv.md#quantisers in registers, bit-equal to pack_ref.cc:
// affine_of, code_of, value_of.

#ifndef KVTWIN_KERNELS_QUANT_QUANTISE_CUH_
#define KVTWIN_KERNELS_QUANT_QUANTISE_CUH_

#include <cuda_fp16.h>

#include "kernels/common/cuda_primitives.cuh"

namespace kvtwin::device {

// Scale and zero of a group, and its codes: five instructions per number, without a branch.
//
// The quotient equals that of a division: q = off * inverse is within its last bit, and one Newton step with
// the remainder, which a fused multiply-add computes exactly, rounds it correctly (Markstein, IBM J. Res.
// Dev. 34, 1990: the inverse is correctly rounded, and no scale of 11 bits is an exception). A slow path for
// doubtful quotients would not pay: one bf16 number in 1,400 is a tie, so every third warp would take it.
template <int kBits>
struct Quantiser {
  static constexpr float kTop = (1 << kBits) - 1;
  static constexpr float kHalfMax = 65504;
  // Adding it rounds to an integer, ties to even, in the low bits.
  static constexpr float kRound = 12582912;
  static constexpr uint32_t kRoundBits = 0x4b400000;

  __half scale, zero;
  float wide_scale = 0, wide_zero = 0, inverse = 0;
  bool tame = false;  // no code is outside [0, kTop], although scale and zero are rounded

  __device__ Quantiser(float low, float high) {
    const bool beyond = low < -kHalfMax || high > kHalfMax;  // then numbers are clamped to fp16's range
    low = fminf(fmaxf(low, -kHalfMax), kHalfMax), high = fminf(fmaxf(high, -kHalfMax), kHalfMax);
    // The correctly rounded quotient by kTop (verified for all mantissas).
    constexpr float kInverse = 1 / kTop;
    const float spread = __fsub_rn(high, low), near = __fmul_rn(spread, kInverse);
    scale = __float2half_rn(fmaf(fmaf(-near, kTop, spread), kInverse, near));
    zero = __float2half_rn(__fadd_rn(low, 0.f));
    wide_scale = __half2float(scale), wide_zero = __half2float(zero);
    inverse = wide_scale == 0 ? 0 : __frcp_rn(wide_scale);
    tame = !beyond && low - wide_zero >= -0.4f * wide_scale && high - wide_zero <= (kTop + 0.4f) * wide_scale;
  }

  // Codes of kCount numbers, each in the low bits of kRoundBits + code.
  template <int kCount>
  __device__ __forceinline__ void codes(const float (&x)[kCount], uint32_t (&out)[kCount]) const {
    if (tame) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) out[i] = __float_as_uint(__fadd_rn(quotient(x[i]), kRound));
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float q = quotient(fminf(fmaxf(x[i], -kHalfMax), kHalfMax));
        out[i] = __float_as_uint(__fadd_rn(fminf(fmaxf(q, 0.f), kTop), kRound));
      }
    }
  }

 private:
  __device__ __forceinline__ float quotient(float x) const {
    const float off = __fsub_rn(x, wide_zero), q = __fmul_rn(off, inverse);
    return fmaf(fmaf(-q, wide_scale, off), inverse, q);
  }
};

// The product is exact, so the single rounding equals pack_ref.cc's.
__device__ __forceinline__ float value_of(uint32_t code, float scale, float zero) {
  return fmaf(__uint_as_float(0x4b000000u | code) - 8388608.f, scale, zero);
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_QUANT_QUANTISE_CUH_
