// Attention of single query rows over paged bf16 KV, any shape: what prefill chunks, and decodes of shapes
// that attention_decode.h does not take, run on until a faster kernel takes them over. Defined by
// attention_ref.
//
// Two kernels. Rows that stand alone: a CTA takes one (row, KV head) after the other; the grid does not
// depend on lengths. Keys are a lane's, so that a dot product needs no exchange; values are read across the
// warp.
//
// Floor of a chunk: 4 * query_heads * head_dim * (KV entries of all rows) flops at 790 TFLOP/s. This kernel
// has no tensor cores and reads all keys and values again for every row: correct, and some hundred times
// slower. Rows that come in runs (`runs`): sixteen at a time by tensor cores (attention_listed.cu).

#ifndef KVTWIN_KERNELS_ATTENTION_ATTENTION_ROWS_H_
#define KVTWIN_KERNELS_ATTENTION_ATTENTION_ROWS_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvtwin {

// q and out row `row` reads the first `kv_entries` KV entries of the pages at pages[table]. No KV entries:
// zeros.
struct QueryRow {
  uint32_t row = 0;
  uint32_t table = 0;
  uint32_t kv_entries = 0;
  // Where heads hold different KV entries (AttentionRowsArgs::by_head): KV head `head`, at its column in a
  // page.
  uint32_t head = 0;
  uint32_t column = 0;
  // Behind the first `sinks` KV entries, `gap` are left out: rings whose rows see different windows.
  uint32_t sinks = UINT32_MAX;
  uint32_t gap = 0;
};

struct AttentionRowsArgs {
  const __nv_bfloat16* pool = nullptr;  // block (page, column) is page * heads_per_page + column
  const uint32_t* pages = nullptr;
  const QueryRow* list = nullptr;    // [rows]
  const __nv_bfloat16* q = nullptr;  // [][query_heads][head_dim]
  __nv_bfloat16* out = nullptr;      // the same
  float scale = 0;
  uint32_t rows = 0, query_heads = 0, kv_heads = 0;
  uint32_t head_dim = 0;  // as kv_block.cuh has it, at most 256
  uint32_t page_tokens = 0;
  uint32_t heads_per_page = 0;  // 0: kv_heads
  bool by_head = false;         // entries of `list` name one KV head each; else all, column = head
  bool listed = false;          // tables name KV entries, page * page_tokens + slot, instead of pages
  // by_head: neighbours of `list` are rows that read the same table (any order is right, others are slow).
  // For heads of 64 and 128; of other sizes it says nothing.
  bool runs = false;
};
// REQUIRES: at most 8 query heads on a KV head. runs: KV entries that some row sees are numbers, for all
// rows.
cudaError_t attention_rows(const AttentionRowsArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_ATTENTION_ATTENTION_ROWS_H_
