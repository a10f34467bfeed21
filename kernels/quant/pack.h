// int4 and int2 KV entries: the quantiser of docs/design/methods/triaxialkv.md#quantisers and the byte
// layouts of docs/design/methods/triaxialkv.md#bytes (TriAxialKV).
//
//   K2 page   (page of `group` tokens, head)   for each channel group/4 bytes of codes, token t in byte t/4,
//                                              bits 2(t%4); then head_dim fp16 scales; then head_dim zeros
//   V2 token  (token, head)                    channel c in byte c/4, bits 2(c%4); scales; zeros
//   K4, V4 token (token, head)                 channel c in byte c/2, low nibble = even channel; scales;
//   zeros
//
// fp16 are stored low byte first. Keys are those after RoPE. Sizes: engine/base/kv_format.h.
// Reference: plain fp32 loops; O(values).

#ifndef KVTWIN_KERNELS_QUANT_PACK_H_
#define KVTWIN_KERNELS_QUANT_PACK_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/kv_format.h"

namespace kvtwin::kernels {

// Scale and zero of a group: value = code * scale + zero, code in [0, 2^bits).
// Both are fp16 bits. Codes are computed from the rounded pair, so that a dequantised value gets its code
// again.
struct Affine {
  uint16_t scale = 0;
  uint16_t zero = 0;
};

// Scale and zero of the `count` values x[0], x[stride], ... Values outside fp16's range are clamped.
// A group without spread (or with a spread below fp16's resolution) has scale 0, and all its codes are 0.
// REQUIRES: no NaN.
Affine affine_of(const float* x, size_t count, size_t stride, uint32_t bits);
uint32_t code_of(float x, Affine shared, uint32_t bits);
float value_of(uint32_t code, Affine shared);

// x, out: [head_dim]. packed: token_bytes(int4 or int2). bits: 2 or 4.
void pack_token(std::span<const float> x, uint32_t bits, const PageShape& shape, std::span<uint8_t> packed);
void unpack_token(std::span<const uint8_t> packed, uint32_t bits, const PageShape& shape,
                  std::span<float> out);

// k, out: [group][head_dim]. packed: key_group_bytes(bits). bits: 2 (K2 page) or 4 (per-channel int4).
void pack_key_group(std::span<const float> k, uint32_t bits, const PageShape& shape,
                    std::span<uint8_t> packed);
void unpack_key_group(std::span<const uint8_t> packed, uint32_t bits, const PageShape& shape,
                      std::span<float> out);

// Reads single codes and scales of a packed key group, for attention that folds scales into q
// (docs/design/methods/triaxialkv.md#serving).
uint32_t key_code(std::span<const uint8_t> packed, uint32_t bits, const PageShape& shape, uint32_t token,
                  uint32_t channel);
Affine key_affine(std::span<const uint8_t> packed, uint32_t bits, const PageShape& shape, uint32_t channel);

uint16_t load_u16(const uint8_t* at);
void store_u16(uint8_t* at, uint16_t value);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_QUANT_PACK_H_
