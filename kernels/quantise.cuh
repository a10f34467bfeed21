// The quantiser of METHODS 4.2 in registers, to the bit that pack_ref.cc has: affine_of, code_of, value_of.

#ifndef KVTWIN_KERNELS_QUANTISE_CUH_
#define KVTWIN_KERNELS_QUANTISE_CUH_

#include <cuda_fp16.h>

#include <cstdint>

namespace kvtwin::device {

// Scale and zero as they are stored, and what codes are computed with.
template <int kBits>
struct Quantiser {
  static constexpr float kTop = (1 << kBits) - 1;
  static constexpr float kHalfMax = 65504;
  // Adding it rounds to an integer, ties to even, and leaves that in the low bits.
  static constexpr float kRound = 12582912;
  static constexpr uint32_t kRoundBits = 0x4b400000;

  __half scale, zero;
  float wide_scale = 0, wide_zero = 0, inverse = 0;

  __device__ Quantiser(float low, float high) {
    low = fminf(fmaxf(low, -kHalfMax), kHalfMax), high = fminf(fmaxf(high, -kHalfMax), kHalfMax);
    scale = __float2half_rn(__fdiv_rn(__fsub_rn(high, low), kTop));
    zero = __float2half_rn(low);
    wide_scale = __half2float(scale), wide_zero = __half2float(zero);
    inverse = wide_scale == 0 ? 0 : __frcp_rn(wide_scale);
  }
  // The code in the low bits of kRoundBits + code.
  // The quotient by way of the inverse is within 2e-7 of itself off the quotient; where that could decide a
  // tie, the division is made.
  __device__ __forceinline__ uint32_t code(float x) const {
    const float off = __fsub_rn(fminf(fmaxf(x, -kHalfMax), kHalfMax), wide_zero);
    float q = fminf(fmaxf(__fmul_rn(off, inverse), 0.f), kTop);
    float rounded = __fadd_rn(q, kRound);
    if (fabsf(__fsub_rn(q, __fsub_rn(rounded, kRound))) > 0.4999f) {
      q = fminf(fmaxf(__fdiv_rn(off, wide_scale), 0.f), kTop);
      rounded = __fadd_rn(q, kRound);
    }
    return __float_as_uint(rounded);
  }
};

// The product is exact, so that one rounding is that of pack_ref.cc.
__device__ __forceinline__ float value_of(uint32_t code, float scale, float zero) {
  return fmaf(static_cast<float>(code), scale, zero);
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_QUANTISE_CUH_
