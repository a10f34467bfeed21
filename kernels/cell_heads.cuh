// Where a row of a CellHead lies.

#ifndef KVTWIN_KERNELS_CELL_HEADS_CUH_
#define KVTWIN_KERNELS_CELL_HEADS_CUH_

#include "kernels/bf16_chunk.cuh"
#include "kernels/cell_heads.h"
#include "kernels/kv_block.cuh"

namespace kvtwin::device {

struct CellPlace {
  uint32_t block = 0;
  uint32_t slot = 0;
};

__device__ inline CellPlace place_of(const CellPool& cells, const CellHead& head, uint32_t row) {
  const uint32_t cell = head.first + row;
  uint32_t page, slot;
  if (cells.listed) {
    const uint32_t id = __ldg(cells.pages + head.table + cell);
    page = id / cells.page_tokens, slot = id % cells.page_tokens;
  } else {
    page = __ldg(cells.pages + head.table + cell / cells.page_tokens), slot = cell % cells.page_tokens;
  }
  return {page * cells.heads_per_page + head.column, slot};
}

// Eight numbers of a key; those of its value lie page_tokens * head_dim further on.
template <int kDim>
__device__ const uint4* key_chunk(const CellPool& cells, CellPlace place, uint32_t chunk) {
  const KvBlockShape block{cells.page_tokens, kDim};
  return reinterpret_cast<const uint4*>(cells.pool + size_t{place.block} * block.numbers() +
                                        block.at(place.slot, 8 * chunk));
}

// One number of each cell besides its key and value: what scorers gathered of it.
__device__ inline size_t mark_of(const CellPool& cells, CellPlace place) {
  return size_t{place.block} * cells.page_tokens + place.slot;
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_CELL_HEADS_CUH_
