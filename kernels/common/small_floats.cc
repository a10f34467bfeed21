#include "kernels/common/small_floats.h"

#include <bit>
#include <cmath>

namespace kvtwin::kernels {
namespace {

// Sign, exponent, mantissa, from high to low.
struct Shape {
  uint32_t exponent_bits, mantissa_bits;
  uint32_t largest;   // code of the largest finite value
  uint32_t overflow;  // code of larger values
  uint32_t nan;
};

constexpr Shape kFp16{5, 10, 0x7bff, 0x7c00, 0x7e00}, kBf16{8, 7, 0x7f7f, 0x7f80, 0x7fc0};
constexpr Shape kE4m3{4, 3, 0x7e, 0x7e, 0x7f}, kE2m1{2, 1, 0x7, 0x7, 0x7};

constexpr int exponent_min(const Shape& s) { return 2 - (1 << (s.exponent_bits - 1)); }

uint32_t encode(float value, const Shape& s) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 31) << (s.exponent_bits + s.mantissa_bits);
  if (std::isnan(value)) return sign | s.nan;
  const uint32_t field = (bits >> 23) & 0xff;
  if (field == 0xff) return sign | s.overflow;
  // |value| = significand * 2^(exponent - 23).
  const int exponent = field == 0 ? -126 : static_cast<int>(field) - 127;
  const uint32_t significand = (bits & 0x7fffff) | (field == 0 ? 0 : 0x800000);
  const int below = exponent < exponent_min(s) ? exponent_min(s) - exponent : 0;
  const int shift = 23 - static_cast<int>(s.mantissa_bits) + below;
  if (shift > 25) return sign;  // less than a quarter of the smallest value
  uint32_t retained = significand >> shift;
  const uint32_t rest = significand & ((1u << shift) - 1), half = 1u << (shift - 1);
  if (rest > half || (rest == half && (retained & 1) != 0)) ++retained;
  // The hidden bit adds one to the exponent field, and a carry out of the mantissa another one.
  const uint32_t steps = below > 0 ? 0 : static_cast<uint32_t>(exponent - exponent_min(s));
  const uint32_t code = (steps << s.mantissa_bits) + retained;
  return sign | (code > s.largest ? s.overflow : code);
}

float decode(uint32_t code, const Shape& s) {
  const uint32_t magnitude = code & ((1u << (s.exponent_bits + s.mantissa_bits)) - 1);
  const bool negative = magnitude != code;
  const uint32_t field = magnitude >> s.mantissa_bits, mantissa = magnitude & ((1u << s.mantissa_bits) - 1);
  float value = 0;
  if (magnitude > s.largest) {
    value = magnitude == s.overflow ? INFINITY : NAN;
  } else if (field == 0) {
    value = std::ldexp(static_cast<float>(mantissa), exponent_min(s) - static_cast<int>(s.mantissa_bits));
  } else {
    value = std::ldexp(static_cast<float>(mantissa + (1u << s.mantissa_bits)),
                       exponent_min(s) + static_cast<int>(field) - 1 - static_cast<int>(s.mantissa_bits));
  }
  return negative ? -value : value;
}

}  // namespace

uint16_t to_fp16(float value) { return static_cast<uint16_t>(encode(value, kFp16)); }
float from_fp16(uint16_t bits) { return decode(bits, kFp16); }
uint16_t to_bf16(float value) { return static_cast<uint16_t>(encode(value, kBf16)); }
float from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
uint8_t to_e4m3(float value) { return static_cast<uint8_t>(encode(value, kE4m3)); }
float from_e4m3(uint8_t bits) { return decode(bits, kE4m3); }
uint8_t to_e2m1(float value) {
  return static_cast<uint8_t>(std::isnan(value) ? kE2m1.largest : encode(value, kE2m1));
}
float from_e2m1(uint8_t bits) { return decode(bits & 0xf, kE2m1); }

}  // namespace kvtwin::kernels
