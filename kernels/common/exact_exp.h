// e^x in fp32 from additions and multiplications only. Math libraries differ in the last bit, and sampled
// tokens must not depend on the machine.

#ifndef KVTWIN_KERNELS_COMMON_EXACT_EXP_H_
#define KVTWIN_KERNELS_COMMON_EXACT_EXP_H_

#include <bit>
#include <cstdint>

namespace kvtwin::kernels {

// Device code that calls this must be compiled with -fmad=false.
#ifdef __CUDACC__
#define KVTWIN_EVERYWHERE __host__ __device__
#else
#define KVTWIN_EVERYWHERE
#endif

KVTWIN_EVERYWHERE inline float float_of_bits(int32_t bits) {
#ifdef __CUDA_ARCH__
  return __int_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

// Within 2 ulp of e^x for x in [-87, 88]; below: e^-87, or about 1.6e-38; above: e^88. NaN: e^-87.
[[gnu::always_inline]] KVTWIN_EVERYWHERE inline float exact_exp(float x) {
  x = x > -87.0f ? x : -87.0f;
  x = x < 88.0f ? x : 88.0f;
  // n = round(x / ln 2): adding and subtracting 1.5 * 2^23 rounds to a whole number.
  const float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
  // ln 2 in two parts: n times the first is exact, so r loses no bits.
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  // Taylor series up to r^7 / 7!; |r| <= 0.35, so the next term is below 1e-8.
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return p * float_of_bits((static_cast<int32_t>(n) + 127) << 23);
}

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_COMMON_EXACT_EXP_H_
