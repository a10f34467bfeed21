// Conversions of fp32 to and from fp16, bf16, E4M3 and E2M1 in integer arithmetic, equal to the GPU's
// conversion instructions.
//
// Rounding is to nearest, ties to even. fp16 and bf16 overflow to infinity and keep NaN. E4M3 (OCP FP8, "fn":
// no infinity) and E2M1 (OCP FP4: neither infinity nor NaN) saturate, as cvt.satfinite does; NaN becomes
// E4M3's NaN and E2M1's largest value.

#ifndef KVTWIN_KERNELS_COMMON_SMALL_FLOATS_H_
#define KVTWIN_KERNELS_COMMON_SMALL_FLOATS_H_

#include <cstdint>

namespace kvtwin::kernels {

uint16_t to_fp16(float value);
float from_fp16(uint16_t bits);
uint16_t to_bf16(float value);
float from_bf16(uint16_t bits);
uint8_t to_e4m3(float value);
float from_e4m3(uint8_t bits);
uint8_t to_e2m1(float value);  // in the low four bits
float from_e2m1(uint8_t bits);

constexpr float kFp16Max = 65504, kE4m3Max = 448, kE2m1Max = 6;

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_COMMON_SMALL_FLOATS_H_
