// Decode attention over paged bf16 KV: one query token per request.
//
//   out[q_row + j] = sum_t softmax_t(scale * q[q_row + j] . K[t]) V[t],  t < tokens, j < group
//
// A *sequence* is one (request, KV head): K and V of `tokens` KV entries in the pages that its table lists.
// Lengths may differ between heads (ragged budgets) and between requests.
//
// Bound by reading K and V once: 4 * head_dim bytes per KV entry at 4.69 TB/s. Llama-3.1-8B, 32 requests x
// 8,192 tokens: 1.07 GB per layer, so >= 229 us. Measured by kernels/bench/decode_bench.cu: see
// kernels/README.md.
//
// The kernel is persistent and splits by stream-K: the grid is fixed and no launch parameter depends on
// lengths. A plan on the device lays all sequences end to end as blocks of 16 tokens and cuts this list into
// one split per warp. Partial results of a sequence are merged by log-sum-exp: within a CTA in shared memory,
// across CTAs by the last CTA to arrive.
//
// Where requests have dropped slots, a table lists KV entries instead of pages (`listed`) and a block is any
// 16 of them. A run of consecutive KV entries of a page is one copy of its keys and one of its values. The
// order of sums does not change: a list of all entries of the pages gives the same bits. Lists add 4 bytes
// per KV entry.
//
// Layout of a block (page, head): `page_tokens` rows of K, then as many rows of V, head_dim bf16 each. Rows
// are swizzled: the 16-byte chunk c of slot t is stored as chunk c ^ (t & 7). Pages of one token are not
// swizzled.

#ifndef KVTWIN_KERNELS_ATTENTION_ATTENTION_DECODE_H_
#define KVTWIN_KERNELS_ATTENTION_ATTENTION_DECODE_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace kvtwin {

constexpr uint32_t kDecodeBlockTokens = 16;  // tokens of a block, the unit of work
constexpr uint32_t kDecodeWarps = 8;         // warps of a CTA; one CTA per SM
constexpr uint32_t kDecodeGroupMax = 8;      // most query heads of a KV head

struct DecodeSequence {
  uint32_t q_row = 0;   // row of its first query head in q and out
  uint32_t table = 0;   // index of its first page in `pages`
  uint32_t tokens = 0;  // 0: the output is 0
  uint32_t column = 0;  // of its KV head in a page of several heads
};

struct DecodeShape {
  uint32_t head_dim = 128;      // 64 or 128
  uint32_t group = 4;           // query heads per KV head, 1 to 8
  uint32_t page_tokens = 16;    // 1, or a multiple of 16
  uint32_t heads_per_page = 1;  // page p, column c is block p * heads_per_page + c of the pool
  uint32_t sequences = 0;
  uint32_t ctas = 132;  // fewer CTAs leave SMs to concurrent kernels
  bool listed = false;  // tables list KV entries (page * page_tokens + slot) instead of pages
};

// All pointers are to device memory. `plan` and `workspace` must not change between a plan and its launches.
struct DecodeArgs {
  const __nv_bfloat16* pool = nullptr;
  const uint32_t* pages = nullptr;
  const DecodeSequence* table = nullptr;  // [sequences]
  const __nv_bfloat16* q = nullptr;       // [rows][head_dim]
  __nv_bfloat16* out = nullptr;           // [rows][head_dim]
  float scale = 0;                        // usually 1 / sqrt(head_dim)
  void* plan = nullptr;                   // decode_plan_bytes()
  void* workspace = nullptr;              // decode_workspace_bytes(), zero before the first launch
};

size_t decode_plan_bytes(const DecodeShape& shape);
size_t decode_workspace_bytes(const DecodeShape& shape);

// Plans the splits from the lengths in `table` at execution time. One plan serves every layer with equal
// lengths. Launches one small kernel.
cudaError_t plan_attention_decode(const DecodeShape& shape, const DecodeArgs& args, cudaStream_t stream);
// REQUIRES: planned for these lengths and this shape.
cudaError_t attention_decode(const DecodeShape& shape, const DecodeArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_ATTENTION_ATTENTION_DECODE_H_
