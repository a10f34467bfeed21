// The fast layout (docs/design/kernels.md#int2-int4): records of 128 tokens of one KV head. Keys are
// quantised per channel over the record, values per token over all channels; codes are in tensor-core operand
// order.
//
//   record = codes | 128 or head_dim fp16 scales | as many fp16 zeros
//
// The codes are the A operands of mma.m16n8k16 (16 x 16 tiles of 32 lanes x 4 registers of two fp16 each).
// Rows of A are tokens for keys and channels for values; columns are the other. In a tile, lane l holds rows
// l/4 and l/4 + 8, columns 2(l%4), +1, +8, +9. A 32-bit word has fields of `bits` bits in its low and its
// high half. Field f of both halves is one register: `word & 0x000F000F` (int4; int2: 0x00030003) is a
// register of two fp16 subnormals, and the next fields need another mask, or a shift by 8:
//   int4   a word is one tile: fields 0..3 are registers 0..3
//   int2   a word is two tiles: fields 0..3 are registers 0..3 of the first, 4..7 those of the second
// Tiles are numbered along channels first, then tokens. The words of lane l in 4 (int4) or 8 (int2)
// consecutive tiles are 16 adjacent bytes: one vector load without bank conflicts.
//
// The quantiser is that of docs/design/methods/triaxialkv.md#bytes; int4 keys are grouped differently (their
// scales fold into q).

#ifndef KVTWIN_KERNELS_QUANT_PACK_FAST_H_
#define KVTWIN_KERNELS_QUANT_PACK_FAST_H_

#include <cstdint>
#include <span>

#include "engine/base/kv_format.h"
#include "kernels/quant/pack.h"

namespace kvtwin::kernels {

enum class Side : uint8_t { kKey, kValue };

// Location of a code: its word and the lowest of its bits. REQUIRES: head_dim is a multiple of 16.
struct FastPlace {
  uint32_t word = 0;
  uint32_t shift = 0;
};
FastPlace fast_place(Side side, uint32_t bits, uint32_t head_dim, uint32_t token, uint32_t channel);

// rows, out: [128][head_dim]. record: record_bytes or value_record_bytes. bits: 2 or 4.
void pack_record(Side side, uint32_t bits, uint32_t head_dim, std::span<const float> rows,
                 std::span<uint8_t> record);
void unpack_record(Side side, uint32_t bits, uint32_t head_dim, std::span<const uint8_t> record,
                   std::span<float> out);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_QUANT_PACK_FAST_H_
