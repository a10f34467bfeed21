// exact_exp() of sixteen numbers at once: the same operations, so the same bits (compilers leave the loop
// over the scalar one as it is).

#ifndef KVTWIN_KERNELS_EXACT_EXP_LANES_H_
#define KVTWIN_KERNELS_EXACT_EXP_LANES_H_

#include "kernels/exact_exp.h"
#include "kernels/wide.h"

namespace kvtwin::kernels {

using IntLanes = int32_t __attribute__((vector_size(kLanes * sizeof(int32_t))));

[[gnu::always_inline]] inline void exact_exp_lanes(Lanes* lanes) {
  const Lanes low = Lanes{} - 87.0f, high = Lanes{} + 88.0f;
  Lanes x = *lanes;
  x = x > low ? x : low;
  x = x < high ? x : high;
  const Lanes n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
  const Lanes r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Lanes p = Lanes{} + 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const IntLanes bits = (__builtin_convertvector(n, IntLanes) + 127) << 23;
  Lanes power;
  std::memcpy(&power, &bits, sizeof power);
  *lanes = p * power;
}

// values[i] = exact_exp(values[i] - shift).
[[gnu::always_inline]] inline void exact_exp_all(float shift, uint64_t count, float* values) {
  Lanes some;
  uint64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    load_lanes(values + i, &some);
    some -= shift;
    exact_exp_lanes(&some);
    store_lanes(some, values + i);
  }
  for (; i < count; ++i) values[i] = exact_exp(values[i] - shift);
}

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_EXACT_EXP_LANES_H_
