// The uniform baselines: fp8 (E4M3), fp4 (E2M1), and KIVI's residual rule.
//
// fp8: one byte per value; x = scale * E4M3, with one `scale` per layer (1 unless calibrated).
// fp4: blocks of 16 channels of a token share a power of two (E8M0: 8 bits, biased by 127), the smallest one
//      with which no value saturates. Codes come first (channel c in byte c/2, low nibble = even channel),
//      then one byte per block. docs/design/methods/triaxialkv.md#numbers names this baseline but not its
//      block format: 16 and E8M0 are chosen here.

#ifndef KVTWIN_KERNELS_QUANT_PACK_LOW_BIT_H_
#define KVTWIN_KERNELS_QUANT_PACK_LOW_BIT_H_

#include <cstdint>
#include <span>

#include "engine/base/kv_format.h"

namespace kvtwin::kernels {

void pack_fp8(std::span<const float> x, float scale, std::span<uint8_t> packed);
void unpack_fp8(std::span<const uint8_t> packed, float scale, std::span<float> out);

// x, out: [head_dim], a multiple of 16. packed: head_dim / 2 + head_dim / 16 bytes.
void pack_fp4(std::span<const float> x, std::span<uint8_t> packed);
void unpack_fp4(std::span<const uint8_t> packed, std::span<float> out);

// How many of `tokens` KV entries KIVI has packed (docs/design/methods/triaxialkv.md#numbers): keys are
// packed `residual` at a time, once that many are complete; values are packed one by one as they leave the
// window of the last `residual`.
struct KiviSplit {
  uint32_t keys_packed = 0;  // keys packed, from the first; the others are exact
  uint32_t values_packed = 0;
};
constexpr KiviSplit kivi_split(uint32_t tokens, uint32_t residual = 128) {
  return {tokens - tokens % residual, tokens > residual ? tokens - residual : 0};
}

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_QUANT_PACK_LOW_BIT_H_
