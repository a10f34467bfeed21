// Random floats for kernel tests, and the distance between two results.

#ifndef KVTWIN_TESTS_UNIT_KERNELS_FLOATS_H_
#define KVTWIN_TESTS_UNIT_KERNELS_FLOATS_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "engine/base/prng.h"

namespace kvtwin::testing {

// Uniform in [-size, size].
inline std::vector<float> random_floats(uint64_t seed, size_t count, float size = 1) {
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) {
    out[i] = size * (static_cast<float>(draw({seed, i}) >> 40) * 0x1p-23f - 1.0f);
  }
  return out;
}

// A hash of the bits. It is equal on every machine unless a kernel sums in another order there.
inline uint64_t bits_of(const std::vector<float>& values, uint64_t hash = 0) {
  for (const float value : values) hash = mix64(hash ^ std::bit_cast<uint32_t>(value)) + 1;
  return hash;
}

// Largest |a - b| / (1 + |b|). Infinite if either has a NaN, or the two are not of one kind.
template <typename T>
double distance(const std::vector<float>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return INFINITY;
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    if (x == y) continue;
    if (!std::isfinite(x) || !std::isfinite(y)) return INFINITY;
    worst = std::max(worst, std::abs(x - y) / (1 + std::abs(y)));
  }
  return worst;
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_KERNELS_FLOATS_H_
