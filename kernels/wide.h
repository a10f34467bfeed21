// What lets plain loops use the widest registers of the machine they run on, with the same bits everywhere.
//
// Functions marked KVTWIN_WIDE are compiled for several widths, and the loader picks one. No result depends
// on the choice: loops over Lanes keep one accumulator per lane, the compiler may not fuse a * b + c
// (-ffp-contract=off), and lanes are summed in one fixed order.

#ifndef KVTWIN_KERNELS_WIDE_H_
#define KVTWIN_KERNELS_WIDE_H_

#include <cstdint>
#include <cstring>

// An attribute cannot be chosen by anything but the preprocessor. Sanitizers start after the loader has
// picked, so they get the plain width.
#if defined(__x86_64__) && defined(__OPTIMIZE__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define KVTWIN_WIDE [[gnu::target_clones("avx512f", "avx2", "default")]]
#else
#define KVTWIN_WIDE
#endif

namespace kvtwin::kernels {

constexpr uint32_t kLanes = 16;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));

[[gnu::always_inline]] inline void load_lanes(const float* from, Lanes* lanes) {
  std::memcpy(lanes, from, sizeof(Lanes));
}
// The rest is zero. REQUIRES: count <= kLanes.
[[gnu::always_inline]] inline void load_some_lanes(const float* from, uint32_t count, Lanes* lanes) {
  *lanes = Lanes{};
  if (count > 0) std::memcpy(lanes, from, count * sizeof(float));
}
[[gnu::always_inline]] inline void store_lanes(const Lanes& lanes, float* to) {
  std::memcpy(to, &lanes, sizeof(Lanes));
}

// Halves are added until one number is left: lane i and lane i + 8, then i and i + 4, ...
[[gnu::always_inline]] inline float sum_lanes(const Lanes& lanes) {
  float a[kLanes];
  std::memcpy(a, &lanes, sizeof a);
  for (uint32_t half = kLanes / 2; half > 0; half /= 2) {
    for (uint32_t i = 0; i < half; ++i) a[i] += a[i + half];
  }
  return a[0];
}

// Sum of a[i] * b[i]: lane i % 16 takes element i.
[[gnu::always_inline]] inline float dot(const float* a, const float* b, uint32_t count) {
  Lanes sum{}, x, y;
  uint32_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    load_lanes(a + i, &x);
    load_lanes(b + i, &y);
    sum += x * y;
  }
  if (i < count) {
    load_some_lanes(a + i, count - i, &x);
    load_some_lanes(b + i, count - i, &y);
    sum += x * y;
  }
  return sum_lanes(sum);
}

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_WIDE_H_
