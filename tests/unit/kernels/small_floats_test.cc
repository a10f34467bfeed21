#include "kernels/common/small_floats.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>

using namespace kvtwin::kernels;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// For each two neighbours a < b among the codes [0, largest]: both convert to themselves, their midpoint
// goes to the even code, and one fp32 step off the midpoint goes to the nearer one. The same below 0.
template <typename To, typename From>
void neighbours(uint32_t largest, uint32_t sign, To to, From from) {
  int problem = 0;
  using Code = decltype(to(0.0f));
  for (uint32_t code = 0; code < largest; ++code) {
    const float a = from(static_cast<Code>(code)), b = from(static_cast<Code>(code + 1));
    const float middle = static_cast<float>((double{a} + double{b}) / 2);
    const bool exact = double{middle} == (double{a} + double{b}) / 2;  // false for bf16's smallest
    problem +=
        !(a < b) || to(a) != code || to(-a) != (code | sign) || -a != from(static_cast<Code>(code | sign));
    if (!exact) continue;
    const uint32_t even = code % 2 == 0 ? code : code + 1;
    problem += to(middle) != even || to(-middle) != (even | sign);
    problem += to(std::nextafter(middle, -kInf)) != code || to(std::nextafter(middle, kInf)) != code + 1;
  }
  CHECK(problem == 0);
  CHECK(to(from(static_cast<Code>(largest))) == largest);
}

}  // namespace

TEST_CASE("small floats: every fp16 and bf16 pattern, and the midpoints between two of them") {
  neighbours(0x7bff, 0x8000, to_fp16, from_fp16);
  neighbours(0x7f7f, 0x8000, to_bf16, from_bf16);
  int problem = 0;
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const auto pattern = static_cast<uint16_t>(code);
    const bool fp16_nan = (code & 0x7fff) > 0x7c00, bf16_nan = (code & 0x7fff) > 0x7f80;
    problem += fp16_nan ? !std::isnan(from_fp16(pattern)) : to_fp16(from_fp16(pattern)) != pattern;
    problem += bf16_nan ? !std::isnan(from_bf16(pattern)) : to_bf16(from_bf16(pattern)) != pattern;
  }
  CHECK(problem == 0);
  CHECK(from_fp16(0x7c00) == kInf);
  CHECK(to_fp16(65519.996f) == 0x7bff);
  CHECK(to_fp16(65520.0f) == 0x7c00);  // the midpoint between the largest and its next code
  CHECK(to_bf16(std::numeric_limits<float>::max()) == 0x7f80);
  CHECK(std::isnan(from_fp16(to_fp16(NAN))));
  CHECK(std::isnan(from_bf16(to_bf16(NAN))));
}

TEST_CASE("small floats: fp16 agrees with the compiler's") {
#ifdef __FLT16_MAX__
  int problem = 0;
  // 1,237 is odd, so all low bits occur: 3.4 M of the 2^32 patterns.
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 1237) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (std::isnan(x)) continue;
    const auto theirs = std::bit_cast<uint16_t>(static_cast<_Float16>(x));
    problem += theirs != to_fp16(x);
  }
  CHECK(problem == 0);
#endif
}

TEST_CASE("small floats: E4M3 and E2M1, all codes, saturation and NaN") {
  neighbours(0x7e, 0x80, to_e4m3, from_e4m3);
  neighbours(0x7, 0x8, to_e2m1, from_e2m1);
  CHECK(from_e4m3(0x7e) == 448.0f);
  CHECK(from_e4m3(0x01) == std::ldexp(1.0f, -9));
  CHECK(std::isnan(from_e4m3(0x7f)));
  CHECK(std::isnan(from_e4m3(0xff)));
  CHECK(to_e4m3(1e9f) == 0x7e);
  CHECK(to_e4m3(-kInf) == 0xfe);
  CHECK(std::isnan(from_e4m3(to_e4m3(NAN))));
  const float e2m1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (uint8_t code = 0; code < 8; ++code) CHECK(from_e2m1(code) == e2m1[code]);
  CHECK(to_e2m1(100) == 7);
  CHECK(to_e2m1(-100) == 15);
}
