// exact_exp() of a whole register: the same operations, so the same bits. Compilers do not vectorise a loop
// over the scalar function.

#ifndef KVTWIN_KERNELS_COMMON_EXACT_EXP_LANES_H_
#define KVTWIN_KERNELS_COMMON_EXACT_EXP_LANES_H_

#include "kernels/common/exact_exp.h"
#include "kernels/common/wide.h"

namespace kvtwin::kernels {

template <uint32_t kWidth>
[[gnu::always_inline]] inline void exact_exp_register(Register<kWidth>* numbers) {
  using Floats = Register<kWidth>;
  using Ints = typename RegisterOf<int32_t, kWidth>::Type;
  const Floats low = Floats{} - 87.0f, high = Floats{} + 88.0f;
  Floats x = *numbers;
  x = x > low ? x : low;
  x = x < high ? x : high;
  const Floats n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
  const Floats r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Floats p = Floats{} + 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const Ints bits = (__builtin_convertvector(n, Ints) + 127) << 23;
  Floats power;
  std::memcpy(&power, &bits, sizeof power);
  *numbers = p * power;
}

// values[i] = exact_exp(values[i] - shift).
template <uint32_t kWidth>
[[gnu::always_inline]] inline void exact_exp_all(float shift, uint64_t count, float* values) {
  Register<kWidth> some;
  uint64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    std::memcpy(&some, values + i, sizeof some);
    some -= shift;
    exact_exp_register<kWidth>(&some);
    std::memcpy(values + i, &some, sizeof some);
  }
  for (; i < count; ++i) values[i] = exact_exp(values[i] - shift);
}

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_COMMON_EXACT_EXP_LANES_H_
