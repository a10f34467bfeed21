// compact_cells() where pages are packed: what is kept moves together as bytes, in place, so that nothing is
// packed twice. Row i of a head's target becomes row kept[i] of its source: key, value and mark.
//
// Formats that pack cell after cell: fp8, int4, fp4 (kernels/packed_page.h). Tables, heads and what may be
// shared: compact_cells.h.
//
// Floor: 2 * token_bytes() read and as many written per kept cell that moves, at 4.69 TB/s, if there are
// heads enough for all SMs.

#ifndef KVTWIN_KERNELS_COMPACT_PACKED_H_
#define KVTWIN_KERNELS_COMPACT_PACKED_H_

#include "engine/base/kv_format.h"
#include "kernels/compact_cells.h"

namespace kvtwin {

struct CompactPackedArgs {
  CellPool cells;  // tables and pages alone: its pool is not looked at; not listed
  Format format = Format::kInt4;
  uint32_t group = 32;
  uint8_t* pool = nullptr;
  float* marks = nullptr;              // likewise moved; null: there are none
  const CompactHead* heads = nullptr;  // [count]
  const uint32_t* kept = nullptr;
  uint32_t count = 0;
};
// cudaErrorInvalidValue: int2, whose keys share scales; bf16; rows that are no whole words.
cudaError_t compact_packed_cells(const CompactPackedArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_COMPACT_PACKED_H_
