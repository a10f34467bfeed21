#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "kernels/common/small_floats.h"
#include "kernels/quant/pack_low_bit.h"

namespace kvtwin::kernels {
namespace {

constexpr int kExponentBias = 127;  // E8M0

// The smallest exponent e with largest <= 6 * 2^e, within the range of E8M0.
int block_exponent(std::span<const float> block) {
  float largest = 0;
  for (const float x : block) largest = std::max(largest, std::abs(x));
  if (largest == 0) return -kExponentBias;
  int exponent = std::ilogb(largest) - 2;  // 2^(e+2) <= largest < 2^(e+3)
  if (largest > std::ldexp(kE2m1Max, exponent)) ++exponent;
  return std::clamp(exponent, -kExponentBias, kExponentBias);
}

}  // namespace

void pack_fp8(std::span<const float> x, float scale, std::span<uint8_t> packed) {
  KVT_CHECK(x.size() == packed.size());
  for (size_t i = 0; i < x.size(); ++i) packed[i] = to_e4m3(x[i] / scale);
}

void unpack_fp8(std::span<const uint8_t> packed, float scale, std::span<float> out) {
  KVT_CHECK(out.size() == packed.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = from_e4m3(packed[i]) * scale;
}

void pack_fp4(std::span<const float> x, std::span<uint8_t> packed) {
  KVT_CHECK(x.size() % kFp4Block == 0);
  KVT_CHECK(packed.size() == x.size() / 2 + x.size() / kFp4Block);
  for (size_t block = 0; block < x.size() / kFp4Block; ++block) {
    const std::span<const float> values = x.subspan(block * kFp4Block, kFp4Block);
    const int exponent = block_exponent(values);
    packed[x.size() / 2 + block] = static_cast<uint8_t>(exponent + kExponentBias);
    for (size_t i = 0; i < kFp4Block; i += 2) {
      const uint32_t even = to_e2m1(std::ldexp(values[i], -exponent));
      const uint32_t odd = to_e2m1(std::ldexp(values[i + 1], -exponent));
      packed[(block * kFp4Block + i) / 2] = static_cast<uint8_t>(even | (odd << 4));
    }
  }
}

void unpack_fp4(std::span<const uint8_t> packed, std::span<float> out) {
  KVT_CHECK(out.size() % kFp4Block == 0);
  KVT_CHECK(packed.size() == out.size() / 2 + out.size() / kFp4Block);
  for (size_t i = 0; i < out.size(); ++i) {
    const int exponent = int{packed[out.size() / 2 + i / kFp4Block]} - kExponentBias;
    out[i] = std::ldexp(from_e2m1(static_cast<uint8_t>(packed[i / 2] >> (4 * (i % 2)))), exponent);
  }
}

}  // namespace kvtwin::kernels
