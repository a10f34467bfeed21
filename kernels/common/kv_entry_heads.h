// KV entries of heads in bf16 pages: the common arguments of scorers, selection and compaction.
//
// The page table of a head locates its KV entries (kv_block.cuh). The kernels process a range of them, the
// head's *rows*: row i is KV entry first + i. With dropped slots a page table cannot tell which KV entries
// are retained; `listed` tables then list KV entries (page * page_tokens + slot) instead of pages.

#ifndef KVTWIN_KERNELS_COMMON_KV_ENTRY_HEADS_H_
#define KVTWIN_KERNELS_COMMON_KV_ENTRY_HEADS_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvtwin {

struct KvEntryPool {
  const __nv_bfloat16* pool = nullptr;
  const uint32_t* pages = nullptr;  // tables
  uint32_t page_tokens = 16;
  uint32_t heads_per_page = 1;  // page p, column c is block p * heads_per_page + c of the pool
  uint32_t head_dim = 128;      // 64, 128 or 256
  bool listed = false;
};

struct KvEntryHead {
  uint32_t table = 0;   // index of its first table entry in `pages`
  uint32_t column = 0;  // of its KV head in a page
  uint32_t first = 0;   // index of row 0 among the table's KV entries
  uint32_t rows = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_COMMON_KV_ENTRY_HEADS_H_
