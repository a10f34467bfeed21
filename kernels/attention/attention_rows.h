// Attention of single query rows over paged bf16 KV, any shape: for prefill chunks and decodes of shapes that
// attention_prefill.h and attention_decode.h do not support. Definition: attention_ref.
//
// Single rows: a CTA processes one (row, KV head) at a time; the grid is bounded and independent of lengths.
// Each lane owns a key, so a dot product needs no shuffle; values are read across the warp. Bound of a chunk:
// 4 * query_heads * head_dim * (KV entries of all rows) flops at 790 TFLOP/s. This kernel uses no tensor
// cores and reads K and V again for every row, so it runs about a hundred times slower than the bound.
//
// Runs of rows with one table (`runs`): sixteen rows at a time on tensor cores (attention_listed.cu).

#ifndef KVTWIN_KERNELS_ATTENTION_ATTENTION_ROWS_H_
#define KVTWIN_KERNELS_ATTENTION_ATTENTION_ROWS_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvtwin {

// Row `row` of q and out reads the first `kv_entries` KV entries of the pages that start at pages[table]. A
// row without KV entries gets zeros.
struct QueryRow {
  uint32_t row = 0;
  uint32_t table = 0;
  uint32_t kv_entries = 0;
  // Used if heads hold different KV entries (AttentionRowsArgs::by_head): the KV head, and its column in a
  // page.
  uint32_t head = 0;
  uint32_t column = 0;
  // After the first `sinks` KV entries, `gap` entries are skipped: rows of a ring see different windows.
  uint32_t sinks = UINT32_MAX;
  uint32_t gap = 0;
};

struct AttentionRowsArgs {
  const __nv_bfloat16* pool = nullptr;  // block (page, column) is page * heads_per_page + column
  const uint32_t* pages = nullptr;
  const QueryRow* list = nullptr;    // [rows]
  const __nv_bfloat16* q = nullptr;  // [][query_heads][head_dim]
  __nv_bfloat16* out = nullptr;      // the same shape
  float scale = 0;
  uint32_t rows = 0, query_heads = 0, kv_heads = 0;
  uint32_t head_dim = 0;  // a head size that kv_block.cuh supports, at most 256
  uint32_t page_tokens = 0;
  uint32_t heads_per_page = 0;  // 0: kv_heads
  bool by_head = false;         // each entry of `list` is one KV head; otherwise all heads, column = head
  bool listed = false;          // tables list KV entries (page * page_tokens + slot) instead of pages
  // With by_head: adjacent entries of `list` read the same table. Any order is correct; other orders are
  // slow. Ignored for head sizes other than 64 and 128.
  bool runs = false;
};
// REQUIRES: at most 8 query heads per KV head. With `runs`, every KV entry that any row of a run sees holds
// finite numbers.
cudaError_t attention_rows(const AttentionRowsArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_ATTENTION_ATTENTION_ROWS_H_
