// Decode attention over paged KV in bf16: one query token per request, every KV head a sequence of its own.
//
//   out[q_row + j] = sum_t softmax_t(scale * q[q_row + j] . K[t]) V[t],  t < tokens, j < group
//
// A *sequence* is one (request, KV head): the keys and values of `tokens` KV entries in the pages that its
// table names. Lengths may differ between heads (ragged budgets) and between requests. No launch parameter
// depends on them: the grid is fixed, a plan on the device cuts all sequences, laid end to end, into shares
// of 16-token blocks (stream-K), one per warp; what several shares found of a sequence is merged by
// log-sum-exp, within a CTA in shared memory, between CTAs by the one that comes last.
//
// Where requests have dropped slots, tables are of KV entries (`listed`), and a block is any 16 of them: runs
// of KV entries that follow one another in a page are one copy each, a lone KV entry two of 2 * head_dim
// bytes. Sums are the same in the same order, so a table of the very KV entries that pages hold gives the
// same bits. Floor: 4 bytes a KV entry more. Predicted: within 3 % of pages for long runs, 10 to 15 % slower
// at random halves of pages, by smaller copies and by rows whose chunks share banks; measured: 4 and 10 % (32
// x 8k), 1 to 6 % at 8 x 1.4k and below.
//
// Page, by (page, head): `page_tokens` rows of K, then as many of V, head_dim bf16 each. Rows are swizzled:
// the 16-byte chunk c of the row of token t is stored at chunk c ^ (t & 7). (Page size 1: not.)
//
// Floor: 4 * head_dim bytes per KV entry at 4.69 TB/s. Llama-3.1-8B, one layer, measured by
// kernels/bench/decode_bench.cu: see kernels/README.md.

#ifndef KVTWIN_KERNELS_ATTENTION_ATTENTION_DECODE_H_
#define KVTWIN_KERNELS_ATTENTION_ATTENTION_DECODE_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace kvtwin {

constexpr uint32_t kDecodeBlockTokens = 16;  // the unit of work
constexpr uint32_t kDecodeWarps = 8;         // of a CTA; one CTA per SM
constexpr uint32_t kDecodeGroupMax = 8;      // query heads of one KV head

struct DecodeSequence {
  uint32_t q_row = 0;   // of its first query head, in q and out
  uint32_t table = 0;   // where its pages start in `pages`
  uint32_t tokens = 0;  // 0: the output is 0
  uint32_t column = 0;  // of its head in a page of several heads
};

struct DecodeShape {
  uint32_t head_dim = 128;      // 64 or 128
  uint32_t group = 4;           // query heads per KV head, 1 to 8
  uint32_t page_tokens = 16;    // 1, or a multiple of 16
  uint32_t heads_per_page = 1;  // page p, column c is block p * heads_per_page + c of the pool
  uint32_t sequences = 0;
  uint32_t ctas = 132;  // fewer leave SMs to others
  bool listed = false;  // tables name KV entries, page * page_tokens + slot each, instead of pages
};

// Device memory, all of it; `plan` and `workspace` belong to this kernel between a plan and its launches.
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

// Cuts the sequences (their lengths as they are on the device now). One plan serves every layer whose
// lengths are the same. One small kernel.
cudaError_t plan_attention_decode(const DecodeShape& shape, const DecodeArgs& args, cudaStream_t stream);
// REQUIRES: planned for these lengths and this shape.
cudaError_t attention_decode(const DecodeShape& shape, const DecodeArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_ATTENTION_ATTENTION_DECODE_H_
