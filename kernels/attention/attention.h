// out[r][h] = softmax(scale * q[r][h] . K) V over the KV entries that row r reads, and the log of the softmax
// denominator, by which partial results are merged.
//
// One definition for decode and prefill: a decode is one row that reads all its KV entries; row i of a chunk
// reads the first context + i + 1 KV entries of its request. Rows are independent: the result of a row does
// not depend on the other rows of the launch.

#ifndef KVTWIN_KERNELS_ATTENTION_ATTENTION_H_
#define KVTWIN_KERNELS_ATTENTION_ATTENTION_H_

#include <cstdint>
#include <span>

#include "kernels/common/kv_pages.h"

namespace kvtwin::kernels {

// One query row: it reads the first `kv_entries` KV entries of `reads`, in this order. Runs may list slots in
// any order. Slots outside all runs are never read.
struct AttentionRow {
  std::span<const ReadRun> reads;
  uint32_t kv_entries = 0;
};

// Consecutive KV heads that read the same KV entries, with their query heads.
struct HeadRange {
  uint32_t first = 0;
  uint32_t count = 0;
};

// Query head j belongs to KV head j / (query_heads / kv_heads).
//   q    [rows][query_heads][head_dim], rotated
//   out  [rows][query_heads][head_dim]; only the query heads of `heads` are written
//   lse  [rows][query_heads], natural log; null: not written
// A row without KV entries gets zeros and -inf. Arithmetic is fp32; the order of sums is that of wide.h.
// REQUIRES: kv.kv_heads divides query_heads; row.kv_entries <= the KV entries of row.reads.
void attention_ref(const KvPages& kv, HeadRange heads, uint32_t query_heads, float scale, const float* q,
                   std::span<const AttentionRow> rows, float* out, float* lse);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_ATTENTION_ATTENTION_H_
