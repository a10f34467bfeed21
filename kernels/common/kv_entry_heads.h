// KV entries of heads in bf16 pages, as scorers, selection and compaction name them on the device.
//
// A head's KV entries lie where its page table says (kv_block.cuh); the kernels of methods read a range
// of them, its *rows*: row i is KV entry first + i. Where tokens leave dropped slots a table of pages cannot
// say which KV entries are left: then `listed` says that the tables name KV entries instead, page *
// page_tokens + slot each.

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
  uint32_t table = 0;   // where its table starts in `pages`
  uint32_t column = 0;  // of its head in a page
  uint32_t first = 0;   // its row 0 among the table's KV entries
  uint32_t rows = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_COMMON_KV_ENTRY_HEADS_H_
