// Decode attention over packed KV (int2, int4, fp8, fp4, KIVI) and over several formats in one step.
//
//   out[q_row + j] = sum_t softmax_t(scale * q[q_row + j] . K[t]) V[t],  t over all parts, j < group
//
// A *sequence* is one (request, KV head). Its KV entries form up to three *parts*, one format each
// (docs/design/methods/triaxialkv.md#serving: int2 pages first, then int4; no split mixes formats), each with
// its own page table into its own pool. The order of KV entries within and between parts does not matter. As
// in attention_decode.h, no launch parameter depends on lengths: a plan on the device lays all parts end to
// end, cuts them into splits of equal cost, one per warp, and partial results of a sequence are merged by
// log-sum-exp.
//
// Layouts of a page of one KV head, K of all its KV entries, then V of all its KV entries:
//   kRows  the byte layouts of docs/design/methods/triaxialkv.md#bytes (pack.h, packed_page.h): int2 and int4
//          with groups of scale_group, fp8 E4M3 with scale 1. Pages of 16, 32, 64 or 128 KV entries; int2: a
//          multiple of scale_group.
//   kFp4   fp4 rows (pack_low_bit.h), all in the high-precision part. Pages of 16, 32, 64 or 128 KV entries.
//   kKivi  int2 rows as in kRows, and bf16 rows in pages of a multiple of 16, swizzled as in
//          attention_decode.h, for the newest KV entries, whose values are exact. Their keys may be packed
//          already (docs/design/methods/triaxialkv.md#numbers); the page then holds the dequantised keys.
//
// A part may end inside a page. Keys of int2 rows share scales along tokens: such a group must have been
// packed whole, even if only its first KV entries are read.
//
// KV entries dropped in the middle of a page can be masked (`live`): they are not read, but must hold finite
// numbers.
//
// REQUIRES: |q| and |q * key scale| below 65504 (products are fp16). Value scales have no limit.
//
// Bound: bytes / 4.69 TB/s; packed_page_bytes() / page tokens bytes per KV entry. Measured by
// kernels/bench/packed_decode_bench.cu: see kernels/README.md.

#ifndef KVTWIN_KERNELS_PACKED_PACKED_DECODE_H_
#define KVTWIN_KERNELS_PACKED_PACKED_DECODE_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "engine/base/kv_format.h"

namespace kvtwin {

constexpr uint32_t kPackedParts = 3;
enum PackedPart : uint32_t { kPartInt2, kPartInt4, kPartHighPrecision };
enum class PackedLayout : uint32_t { kRows, kFp4, kKivi };

struct PackedSequence {
  uint32_t q_row = 0;                  // row of its first query head in q and out
  uint32_t column = 0;                 // of its KV head in a page of several heads
  uint32_t table[kPackedParts] = {};   // index of each part's first page in `pages`
  uint32_t tokens[kPackedParts] = {};  // all 0: the output is 0
};

struct PackedDecodeShape {
  PackedLayout layout = PackedLayout::kRows;
  uint32_t head_dim = 128;    // 64 or 128
  uint32_t group = 4;         // query heads per KV head, 1 to 8
  uint32_t scale_group = 32;  // kRows, kKivi: values that share a scale: 32, 64 or 128
  uint32_t page_tokens[kPackedParts] = {128, 128, 16};  // by part
  uint32_t heads_per_page = 1;                          // page p, column c is block p * heads_per_page + c
  uint32_t sequences = 0;
  uint32_t ctas = 132;
};

// All pointers are to device memory. `plan` and `workspace` must not change between a plan and its launches.
struct PackedDecodeArgs {
  const void* pool[kPackedParts] = {};  // pool of each part's pages, 16-byte aligned
  const uint32_t* pages = nullptr;
  const PackedSequence* table = nullptr;  // [sequences]
  const __nv_bfloat16* q = nullptr;       // [rows][head_dim]
  __nv_bfloat16* out = nullptr;           // [rows][head_dim]
  float scale = 0;                        // usually 1 / sqrt(head_dim); positive
  void* plan = nullptr;                   // packed_plan_bytes()
  void* workspace = nullptr;              // packed_workspace_bytes(), zero before the first launch
  // By part, 4 words per page and column: bit t is set if KV entry t is live. Null: all KV entries of that
  // part are live.
  const uint32_t* live[kPackedParts] = {};
};

// Bytes of K and V of a page of one KV head. kFp4 has only the high-precision part; kKivi has no int4 part.
constexpr uint64_t packed_page_bytes(const PackedDecodeShape& s, PackedPart part) {
  const Format high_precision = s.layout == PackedLayout::kRows  ? Format::kFp8
                                : s.layout == PackedLayout::kFp4 ? Format::kFp4
                                                                 : Format::kBf16;
  const Format format = part == kPartInt2   ? Format::kInt2
                        : part == kPartInt4 ? Format::kInt4
                                            : high_precision;
  return page_bytes(format, {s.page_tokens[part], s.head_dim, s.scale_group});
}

bool packed_shape_is_possible(const PackedDecodeShape& shape);
size_t packed_plan_bytes(const PackedDecodeShape& shape);
size_t packed_workspace_bytes(const PackedDecodeShape& shape);

// Plans the splits from the lengths in `table` at execution time. One plan serves every layer with equal
// lengths. Launches one small kernel. Returns cudaErrorInvalidValue for an unsupported shape.
cudaError_t plan_packed_decode(const PackedDecodeShape& shape, const PackedDecodeArgs& args,
                               cudaStream_t stream);
// REQUIRES: planned for these lengths and this shape.
cudaError_t packed_decode(const PackedDecodeShape& shape, const PackedDecodeArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_PACKED_PACKED_DECODE_H_
