// Converts single KV entries between a pool of packed pages and a pool of bf16 pages, or copies them between
// two bf16 pools.
//
// A pool is an array of KV entries: entry c is slot c % page_tokens of page c / page_tokens. A page is
// `kv_heads` blocks of page_bytes(format, shape) each, one per KV head: packed blocks as in
// kernels/packed/packed_page.h, bf16 blocks as in kv_block.cuh. A span moves `count` KV entries of all KV
// heads; they are consecutive in both pools.
//
// Packed bytes are those of pack_kv_entry, pack_key_group and pack_token; unpacked values are unpack_page's,
// rounded to bf16. fp8 has scale 1. int2 keys are packed by group, so a span of them is whole groups of the
// packed pool; int2 values are packed per KV entry.
//
// Bound: each KV entry read once in one format and written once in the other, at 4.69 TB/s. A thread packs
// one group of channels, so the loads of a warp are 64 bytes apart. A step packs its own rows; it unpacks the
// history of chunks and of decodes that no fused kernel supports.

#ifndef KVTWIN_KERNELS_QUANT_CONVERT_ENTRIES_H_
#define KVTWIN_KERNELS_QUANT_CONVERT_ENTRIES_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/base/kv_format.h"

namespace kvtwin {

enum KvEntrySides : uint32_t { kKeySide = 1, kValueSide = 2, kBothSides = 3 };

struct KvEntrySpan {
  uint32_t source = 0, target = 0;  // first KV entry in each pool
  uint32_t count = 0;
  uint32_t sides = kBothSides;
};

struct ConvertArgs {
  const KvEntrySpan* spans = nullptr;  // [count], on the device
  uint32_t count = 0;
  Format format = Format::kInt4;  // format of the packed pool
  PageShape shape;                // shape of the packed pool; group: a multiple of 8
  uint32_t kv_heads = 0;
  uint32_t dequantized_page_tokens = 16;  // of the bf16 pool; in copy_entries() of both
};

// REQUIRES: no NaN among packed values; no two spans write the same KV entry.
// Returns cudaErrorInvalidValue for an unsupported shape.
cudaError_t pack_entries(const ConvertArgs& args, const __nv_bfloat16* dequantized, uint8_t* packed,
                         cudaStream_t stream);
cudaError_t unpack_entries(const ConvertArgs& args, const uint8_t* packed, __nv_bfloat16* dequantized,
                           cudaStream_t stream);
// bf16 to bf16; format and group are ignored. REQUIRES: no span reads a KV entry that another one writes.
cudaError_t copy_entries(const ConvertArgs& args, const __nv_bfloat16* source, __nv_bfloat16* target,
                         cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_QUANT_CONVERT_ENTRIES_H_
