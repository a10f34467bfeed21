// out[r][h] = softmax(scale * q[r][h] . K) V over the KV entries that row r may read, with the log of the
// softmax's denominator, so that partial results can be merged.
//
// Decode and prefill alike: a decode is one row that reads all its KV entries; row i of a chunk reads the
// first context + i + 1 KV entries of its request. Rows are independent of one another: what a row gets does
// not depend on the other rows.

#ifndef KVTWIN_KERNELS_ATTENTION_ATTENTION_H_
#define KVTWIN_KERNELS_ATTENTION_ATTENTION_H_

#include <cstdint>
#include <span>

#include "kernels/common/kv_pages.h"

namespace kvtwin::kernels {

// One query row: the first `kv_entries` KV entries of `reads`, in this order. Runs may name slots in any
// order, and slots that no run names are never read.
struct AttentionRow {
  std::span<const ReadRun> reads;
  uint32_t kv_entries = 0;
};

// KV heads that read the same KV entries, and the query heads that belong to them.
struct HeadRange {
  uint32_t first = 0;
  uint32_t count = 0;
};

// Query head j belongs to KV head j / (query_heads / kv_heads).
//   q    [rows][query_heads][head_dim], rotated
//   out  [rows][query_heads][head_dim]; of the query heads of `heads` alone
//   lse  [rows][query_heads], natural log; null: not wanted
// A row with no KV entries gets zeros and -inf. fp32; sums as in wide.h.
// REQUIRES: kv.kv_heads divides query_heads; row.kv_entries <= the KV entries of row.reads.
void attention_ref(const KvPages& kv, HeadRange heads, uint32_t query_heads, float scale, const float* q,
                   std::span<const AttentionRow> rows, float* out, float* lse);

// One of several results over disjoint KV entries.
struct PartialAttention {
  const float* out = nullptr;  // [rows_heads][head_dim]
  const float* lse = nullptr;  // [rows_heads]
};

// The result over all their KV entries: out = sum of exp(lse_i - lse) * out_i, lse = log of the sum of
// exp(lse_i). All parts -inf: zeros and -inf. lse may be null.
void merge_attention_ref(std::span<const PartialAttention> parts, uint64_t rows_heads, uint32_t head_dim,
                         float* out, float* lse);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_ATTENTION_ATTENTION_H_
