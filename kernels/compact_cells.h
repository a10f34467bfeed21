// What is kept moves together, in place: row i of a head's target becomes row kept[i] of its source, key,
// value and mark. METHODS 7.2: cells of a head stay in order of position.
//
// Source and target may be one table, or share pages: kept ascends, so row i comes from row i or further on,
// and a CTA has a head from its first row to its last: what it writes it has read. (Other heads' cells lie in
// other blocks.) gather_cells() is faster where nothing is shared.
//
// Re-rotation (METHODS 0.2, `rerotate`): a key that moves is turned by the angle between its place and its
// old phase, in fp32, rounded to bf16.
//
// Floor: 4 * head_dim bytes read and as many written per kept cell that moves, at 4.69 TB/s, if there are
// heads enough for all SMs.

#ifndef KVTWIN_KERNELS_COMPACT_CELLS_H_
#define KVTWIN_KERNELS_COMPACT_CELLS_H_

#include "kernels/cell_heads.h"

namespace kvtwin {

struct CompactHead {
  CellHead source;
  uint32_t target_table = 0;  // of the same column
  uint32_t target_first = 0;
  uint32_t kept = 0;   // where its kept rows are
  uint32_t count = 0;  // of them
};

struct CompactArgs {
  CellPool cells;  // of source and target; not listed
  __nv_bfloat16* pool = nullptr;
  float* marks = nullptr;              // likewise moved; null: there are none
  const CompactHead* heads = nullptr;  // [count]
  const uint32_t* kept = nullptr;
  const float* inv_freq = nullptr;  // [head_dim / 2]: keys are rotated by their places; null: keep phase
  uint32_t count = 0;
};
cudaError_t compact_cells(const CompactArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_COMPACT_CELLS_H_
