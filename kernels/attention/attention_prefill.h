// Prefill attention in bf16: many query rows per request, causal, over [keys in pages ++ keys of the chunk].
//
//   out[t][j] = sum_c softmax_c(scale * q[t][j] . K[c]) V[c],   c < past + t + 1,   t < rows, j < group
//
// A *sequence* is one (request, KV head): `past` KV entries in the pages that its table lists, followed by
// `rows` KV entries of the chunk. The chunk's KV entries are either dense rows (k and v of PrefillArgs) or
// already in the pages (k and v null). Histories may differ between heads (ragged budgets) and between
// requests (a varlen batch). The grid is fixed and no launch parameter depends on lengths: a plan on the
// device lists the tiles of work.
//
// A tile of work is 128 rows of (token, query head of the group), that is 128 / group tokens: the query heads
// of a KV head share each K and V tile. Key tiles have 128 KV entries. Pages are those of attention_decode.h;
// their swizzle is wgmma's 128-byte swizzle, applied to each half of a row. Definition:
// kernels/attention/attention.h; source of the online softmax: Dao et al., FlashAttention, section 3.1.
//
// Bound by tensor cores: 4 * head_dim flops per (row, query head, visible KV entry) at 790 TFLOP/s, the rate
// that cuBLAS sustains in bf16. Llama-3.1-8B, causal, 8k: 0.55 TFLOP, so >= 0.70 ms. The exponentials take
// 0.35 ms and overlap with the products, because two warpgroups alternate. Measured by
// kernels/bench/prefill_bench.cu: see kernels/README.md.

#ifndef KVTWIN_KERNELS_ATTENTION_ATTENTION_PREFILL_H_
#define KVTWIN_KERNELS_ATTENTION_ATTENTION_PREFILL_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace kvtwin {

constexpr uint32_t kPrefillTileRows = 128;  // (token, query head) pairs of a tile of work
constexpr uint32_t kPrefillTileKeys = 128;  // KV entries of a key tile
constexpr uint32_t kPrefillGroupMax = 8;

struct PrefillSequence {
  uint32_t row = 0;     // of its first token in q, k, v and out
  uint32_t rows = 0;    // tokens of the chunk; 0: no work
  uint32_t head = 0;    // KV head; its query heads start at head * group
  uint32_t past = 0;    // KV entries before the chunk
  uint32_t table = 0;   // index of its first page in `pages`
  uint32_t column = 0;  // of its KV head in a page of several heads
};

struct PrefillShape {
  uint32_t head_dim = 128;      // 64 or 128
  uint32_t group = 4;           // query heads per KV head, 1 to 8
  uint32_t kv_heads = 8;        // KV heads of a row of k and v
  uint32_t page_tokens = 16;    // a multiple of 16 (page size 1: gather_entries() first)
  uint32_t heads_per_page = 1;  // page p, column c is block p * heads_per_page + c of the pool
  uint32_t pool_blocks = 0;     // blocks of the pool; may be 0 if no sequence has a past
  uint32_t sequences = 0;
  uint32_t rows = 0;       // rows of q: the sum of the chunks of all requests
  uint32_t q_stride = 0;   // elements between rows of q; a multiple of 8
  uint32_t kv_stride = 0;  // the same for k and v
  uint32_t ctas = 132;     // fewer CTAs leave SMs to concurrent kernels
};

// All pointers are to device memory, aligned to 16 bytes. `plan` must not change between a plan and its
// launches. Launches with one plan must not overlap: they share its work counter.
struct PrefillArgs {
  const __nv_bfloat16* pool = nullptr;
  const uint32_t* pages = nullptr;
  const PrefillSequence* table = nullptr;  // [sequences]
  const __nv_bfloat16* q = nullptr;        // [rows][kv_heads * group][head_dim], rows q_stride apart
  const __nv_bfloat16* k = nullptr;        // [rows][kv_heads][head_dim], rotated; null: already in pages
  const __nv_bfloat16* v = nullptr;
  __nv_bfloat16* out = nullptr;  // [rows][kv_heads * group][head_dim]
  float* lse = nullptr;          // [rows][kv_heads * group], natural log; null: not written
  float scale = 0;               // usually 1 / sqrt(head_dim); above 0
  void* plan = nullptr;          // prefill_plan_bytes()
};

size_t prefill_plan_bytes(const PrefillShape& shape);

// Lists the tiles of all sequences from the lengths in `table` at execution time, longest first within a
// section (prefill_plan.cuh). One plan serves every layer with equal lengths. Launches one small kernel.
cudaError_t plan_attention_prefill(const PrefillShape& shape, const PrefillArgs& args, cudaStream_t stream);
// REQUIRES: planned for these lengths and this shape, with k null or not null as here.
// Returns cudaErrorInvalidValue for an unsupported shape.
cudaError_t attention_prefill(const PrefillShape& shape, const PrefillArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_ATTENTION_ATTENTION_PREFILL_H_
