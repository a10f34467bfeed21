#include "traces/synth/synthesize_draws.h"

#include <array>
#include <bit>

#include "engine/base/check.h"

namespace kvtwin {
namespace {

using Wide = unsigned __int128;

constexpr uint64_t kOne = uint64_t{1} << 62;  // 1.0 in Q62

constexpr uint64_t square_root(Wide x) {
  uint64_t root = 0;
  for (int bit = 63; bit >= 0; --bit) {
    const uint64_t trial = root | (uint64_t{1} << bit);
    if (Wide{trial} * trial <= x) root = trial;
  }
  return root;
}

// roots[i] = 2^(2^-(i+1)) in Q62: each is the square root of the previous one.
constexpr std::array<uint64_t, 32> roots_of_two() {
  std::array<uint64_t, 32> roots{};
  uint64_t value = 2 * kOne;
  for (uint64_t& root : roots) root = value = square_root(Wide{value} << 62);
  return roots;
}
constexpr std::array<uint64_t, 32> kRoots = roots_of_two();

constexpr uint64_t kLn2Q32 = 2977044472;  // round(2^32 * ln 2)

int64_t between(const QuantilePoint& low, const QuantilePoint& high, uint64_t fraction_q32) {
  const auto width = static_cast<uint64_t>(high.value - low.value);
  if (low.value <= 0) return low.value + static_cast<int64_t>((Wide{width} * fraction_q32) >> 32);
  const uint64_t from = log2_q32(static_cast<uint64_t>(low.value));
  const uint64_t to = log2_q32(static_cast<uint64_t>(high.value));
  const uint64_t at = from + static_cast<uint64_t>((Wide{to - from} * fraction_q32) >> 32);
  const auto value = static_cast<int64_t>(exp2_q32(at));
  return value < low.value ? low.value : value > high.value ? high.value : value;
}

}  // namespace

// Squares the mantissa 32 times; each time it passes 2, a bit of the logarithm is set.
uint64_t log2_q32(uint64_t x) {
  KVT_CHECK(x > 0);
  const int whole = 63 - std::countl_zero(x);
  uint64_t mantissa = x << (63 - whole);  // Q63, in [1, 2)
  uint64_t bits = 0;
  for (int i = 0; i < 32; ++i) {
    const Wide squared = Wide{mantissa} * mantissa >> 63;
    const bool passed = (squared >> 64) != 0;
    mantissa = static_cast<uint64_t>(passed ? squared >> 1 : squared);
    bits = (bits << 1) | (passed ? 1 : 0);
  }
  return (static_cast<uint64_t>(whole) << 32) | bits;
}

uint64_t exp2_q32(uint64_t exponent) {
  const uint64_t whole = exponent >> 32;
  KVT_CHECK(whole < 63);
  uint64_t mantissa = kOne;
  for (int i = 0; i < 32; ++i) {
    if ((exponent >> (31 - i)) & 1) {
      mantissa = static_cast<uint64_t>(Wide{mantissa} * kRoots[static_cast<size_t>(i)] >> 62);
    }
  }
  // Adds half a unit in the last place of the 32-bit exponent, so that exp2(log2(x)) is x and not x - 1.
  mantissa += mantissa >> 32;
  return static_cast<uint64_t>(Wide{mantissa} << whole >> 62);
}

int64_t quantile(QuantileTable table, uint64_t u) {
  KVT_CHECK(table.size() >= 2 && table.front().cumulative == 0 && table.back().cumulative == 100'000);
  const uint64_t at = (u >> 32) * 100'000;  // cumulative fraction in 100,000, Q32
  size_t i = 1;
  while (i + 1 < table.size() && (uint64_t{table[i].cumulative} << 32) <= at) ++i;
  const QuantilePoint& low = table[i - 1];
  const QuantilePoint& high = table[i];
  if (low.cumulative == high.cumulative || low.value == high.value) return high.value;
  const uint64_t fraction = (at - (uint64_t{low.cumulative} << 32)) / (high.cumulative - low.cumulative);
  return between(low, high, fraction);
}

// -ln(v) with v = (u + 1) / 2^64: (64 - log2(u + 1)) * ln 2.
int64_t exponential(int64_t mean, uint64_t u) {
  KVT_CHECK(mean >= 0 && mean < (int64_t{1} << 53));
  if (u == UINT64_MAX) return 0;
  const uint64_t bits = (uint64_t{64} << 32) - log2_q32(u + 1);
  const Wide minus_ln = Wide{bits} * kLn2Q32 >> 32;  // Q32
  return static_cast<int64_t>(Wide{static_cast<uint64_t>(mean)} * minus_ln >> 32);
}

}  // namespace kvtwin
