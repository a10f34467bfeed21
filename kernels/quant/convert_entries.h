// KV entries on their way between a pool of packed pages and one of bf16 pages, or between two of bf16 pages:
// some KV entries of some pages, one by one. (Whole pages: pack_pages.h, faster.)
//
// A pool is a row of KV entries: KV entry c is slot c % page_tokens of page c / page_tokens. A page is
// `kv_heads` blocks, one for each KV head, page_bytes(format, shape) each: packed as
// kernels/packed/packed_page.h has it, bf16 as kv_block.cuh. A span moves `count` KV entries that follow one
// another in both pools, of all KV heads.
//
// Bytes are those of pack_kv_entry, pack_key_group and pack_token, and what is read is unpack_page's, rounded
// to bf16. fp8: scale 1. int2: keys are packed group by group, so a span of them is whole groups in the
// packed pool; values one KV entry after the other.
//
// Floor: each KV entry read once in one form and written once in the other, at 4.69 TB/s. A thread packs one
// group of channels, so the loads of a warp lie 64 bytes apart. What a step packs is its own rows; what it
// unpacks is the history of chunks, and of decodes that no fused kernel takes.

#ifndef KVTWIN_KERNELS_QUANT_CONVERT_ENTRIES_H_
#define KVTWIN_KERNELS_QUANT_CONVERT_ENTRIES_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/base/kv_format.h"

namespace kvtwin {

enum KvEntrySides : uint32_t { kKeySide = 1, kValueSide = 2, kBothSides = 3 };

struct KvEntrySpan {
  uint32_t source = 0, target = 0;  // the first KV entry in each pool
  uint32_t count = 0;
  uint32_t sides = kBothSides;
};

struct ConvertArgs {
  const KvEntrySpan* spans = nullptr;  // [count], on the device
  uint32_t count = 0;
  Format format = Format::kInt4;  // of the packed pool
  PageShape shape;                // the same; group: a multiple of 8
  uint32_t kv_heads = 0;
  uint32_t dequantized_page_tokens = 16;  // of the bf16 pool; of both, in copy_entries()
};

// REQUIRES: no NaN in what is packed; no two spans write the same entry.
// cudaErrorInvalidValue: a shape that is not supported.
cudaError_t pack_entries(const ConvertArgs& args, const __nv_bfloat16* dequantized, uint8_t* packed,
                         cudaStream_t stream);
cudaError_t unpack_entries(const ConvertArgs& args, const uint8_t* packed, __nv_bfloat16* dequantized,
                           cudaStream_t stream);
// bf16 to bf16; format and group do not matter. REQUIRES: no span reads what another one writes.
cudaError_t copy_entries(const ConvertArgs& args, const __nv_bfloat16* source, __nv_bfloat16* target,
                         cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_QUANT_CONVERT_ENTRIES_H_
