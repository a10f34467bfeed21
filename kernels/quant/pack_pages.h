// Converts whole pages between bf16 (kv_block.cuh) and a low-bit format. Definition: pack_page and
// unpack_page (kernels/packed/packed_page.h, docs/design/methods/triaxialkv.md#bytes), with bit-equal
// results; fp8 has scale 1, unpacked values are rounded to bf16.
//
// Bound: each page read once in one format and written once in the other, at 4.69 TB/s. int4 at group 32 with
// head_dim 128: 512 + 160 bytes per KV entry. Instruction issue is close to that bound too (about 13 of the
// 18 instructions per number that 128 lanes per SM can issue in this time), so quotients are computed without
// divisions.

#ifndef KVTWIN_KERNELS_QUANT_PACK_PAGES_H_
#define KVTWIN_KERNELS_QUANT_PACK_PAGES_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/base/kv_format.h"

namespace kvtwin {

struct PagePair {
  uint32_t source = 0;  // block of the source pool
  uint32_t target = 0;
};

struct PackArgs {
  const PagePair* pages = nullptr;  // [count]
  uint32_t count = 0;
  Format format = Format::kInt4;  // int4, int2 or fp8
  PageShape shape;  // page_tokens: 1, or a multiple of 8; head_dim 64 or 128; group 32, 64 or 128
};

// `packed`: blocks of page_bytes(format, shape), aligned to 16. REQUIRES: no NaN in the source pages.
// Returns cudaErrorInvalidValue for an unsupported shape.
cudaError_t pack_pages(const PackArgs& args, const __nv_bfloat16* pool, uint8_t* packed, cudaStream_t stream);
cudaError_t unpack_pages(const PackArgs& args, const uint8_t* packed, __nv_bfloat16* pool,
                         cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_QUANT_PACK_PAGES_H_
