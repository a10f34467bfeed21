// Whole pages from bf16 (kv_block.cuh) to a narrower format and back. Bytes: kernels/packed/packed_page.h,
// docs/design/methods/triaxialkv.md#bytes; pack_page and unpack_page define them, and the bytes are the same
// (scale 1 for fp8, to_bf16 of what is read).
//
// Floor: each page read once in one form and written once in the other, at 4.69 TB/s. int4 at group 32 with
// head_dim 128: 512 + 160 bytes a KV entry. Instructions a number are near that floor too (about 13 of the 18
// that 128 lanes an SM could issue in the time), hence the quotient without a division.

#ifndef KVTWIN_KERNELS_QUANT_PACK_PAGES_H_
#define KVTWIN_KERNELS_QUANT_PACK_PAGES_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/base/kv_format.h"

namespace kvtwin {

struct PagePair {
  uint32_t source = 0;  // block of its pool
  uint32_t target = 0;
};

struct PackArgs {
  const PagePair* pages = nullptr;  // [count]
  uint32_t count = 0;
  Format format = Format::kInt4;  // int4, int2 or fp8
  PageShape shape;  // page_tokens: 1, or a multiple of 8; head_dim 64 or 128; group 32, 64 or 128
};

// `packed`: blocks of page_bytes(format, shape), aligned to 16. REQUIRES: no NaN in the source pages.
// cudaErrorInvalidValue: a shape that is not supported.
cudaError_t pack_pages(const PackArgs& args, const __nv_bfloat16* pool, uint8_t* packed, cudaStream_t stream);
cudaError_t unpack_pages(const PackArgs& args, const uint8_t* packed, __nv_bfloat16* pool,
                         cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_QUANT_PACK_PAGES_H_
