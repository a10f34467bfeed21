// CellMemory: bf16 cells where pages belong to head groups, one number besides of each (its mark), and
// scratch pages behind them, for rows that have no page yet.
//
//   pool   [pages ++ scratch][columns][keys, values][page_tokens][head_dim]   (kv_block.cuh)
//   marks  [pages ++ scratch][columns][page_tokens]
// All layers are in one pool: a head's column says where it is (METHODS 2.6). Scratch is one layer deep:
// heads of one layer that share a column have scratch pages of their own, the next layer uses them again.

#ifndef KVTWIN_ENGINE_CUDA_CELL_MEMORY_H_
#define KVTWIN_ENGINE_CUDA_CELL_MEMORY_H_

#include <vector>

#include "engine/cpu/call_cells.h"
#include "engine/cuda/buffer.h"
#include "engine/cuda/caches.h"
#include "kernels/cell_heads.h"

namespace kvtwin::cuda {

class CellMemory {
 public:
  CellMemory() = default;
  // `shape` must outlive it. `scratch`: scratch pages of one lane. Wrong: no room for so many pages.
  static Result<CellMemory> make(const KvMemory& memory, const LlmSpec& llm, const cpu::CellShape* shape,
                                 uint32_t scratch);

  uint32_t columns() const { return columns_; }
  uint32_t pages() const { return pages_; }  // scratch among them
  __nv_bfloat16* pool() const { return pool_.as<__nv_bfloat16>(); }
  float* marks() const { return marks_.as<float>(); }
  CellPool cells(const uint32_t* tables, bool listed) const {
    return {pool(), tables, page_tokens_, columns_, head_dim_, listed};
  }
  // Scratch page `index` of the head's lane.
  uint32_t scratch(uint32_t head, uint32_t index) const;
  uint32_t lane_of(uint32_t head) const { return lanes_[head]; }
  uint32_t scratch_pages() const { return scratch_; }

  // Every value becomes NaN.
  void poison(PageId page, cudaStream_t stream) const;

 private:
  uint64_t page_bytes() const {
    return uint64_t{2} * columns_ * page_tokens_ * head_dim_ * sizeof(__nv_bfloat16);
  }

  Buffer pool_, marks_;
  std::vector<uint32_t> lanes_;  // by head
  uint32_t page_tokens_ = 0, columns_ = 0, head_dim_ = 0, pages_gpu_ = 0, pages_ = 0, scratch_ = 0;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_CELL_MEMORY_H_
