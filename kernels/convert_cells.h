// Cells on their way between a pool of packed pages and one of bf16 pages, or between two of bf16 pages: some
// cells of some pages, one by one. (Whole pages: pack_pages.h, faster.)
//
// A pool is a row of cells: cell c is slot c % page_tokens of page c / page_tokens. A page is `kv_heads`
// blocks, one for each KV head, page_bytes(format, shape) each: packed as kernels/packed_page.h has it, bf16
// as kv_block.cuh. A span moves `count` cells that follow one another in both pools, of all KV heads.
//
// Bytes are those of pack_cell, pack_key_group and pack_token, and what is read is unpack_page's, rounded to
// bf16. fp8: scale 1. int2: keys are packed group by group, so a span of them is whole groups in the packed
// pool; values cell by cell.
//
// Floor: each cell read once in one form and written once in the other, at 4.69 TB/s. A thread packs one
// group of channels, so the loads of a warp lie 64 bytes apart. What a step packs is its own rows; what it
// unpacks is the history of chunks, and of decodes that no fused kernel takes.

#ifndef KVTWIN_KERNELS_CONVERT_CELLS_H_
#define KVTWIN_KERNELS_CONVERT_CELLS_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/base/kv_format.h"

namespace kvtwin {

enum CellSides : uint32_t { kKeySide = 1, kValueSide = 2, kBothSides = 3 };

struct CellSpan {
  uint32_t source = 0, target = 0;  // the first cell in each pool
  uint32_t count = 0;
  uint32_t sides = kBothSides;
};

struct ConvertArgs {
  const CellSpan* spans = nullptr;  // [count], on the device
  uint32_t count = 0;
  Format format = Format::kInt4;  // of the packed pool
  PageShape shape;                // likewise; group: a multiple of 8
  uint32_t kv_heads = 0;
  uint32_t wide_page_tokens = 16;  // of the bf16 pool; of both, in copy_cells()
};

// REQUIRES: no NaN in what is packed; no two spans write the same cell.
// cudaErrorInvalidValue: a shape that is not supported.
cudaError_t pack_cells(const ConvertArgs& args, const __nv_bfloat16* wide, uint8_t* packed,
                       cudaStream_t stream);
cudaError_t unpack_cells(const ConvertArgs& args, const uint8_t* packed, __nv_bfloat16* wide,
                         cudaStream_t stream);
// bf16 to bf16; format and group do not matter. REQUIRES: no span reads what another one writes.
cudaError_t copy_cells(const ConvertArgs& args, const __nv_bfloat16* source, __nv_bfloat16* target,
                       cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_CONVERT_CELLS_H_
