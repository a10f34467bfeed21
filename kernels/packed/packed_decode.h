// Decode attention over packed KV (int2, int4, fp8, fp4, KIVI) and over several formats in one step.
//
//   out[q_row + j] = sum_t softmax_t(scale * q[q_row + j] . K[t]) V[t],  t over all parts, j < group
//
// A *sequence* is one (request, KV head). Its KV entries lie in up to three *parts*, one format each
// (docs/design/methods/triaxialkv.md#serving: int2 pages first, then int4; no split mixes formats), each with
// a page table of its own into a pool of its own. The order of KV entries within and between parts does not
// matter. As in attention_decode.h no launch parameter depends on lengths: a plan on the device cuts all
// parts, laid end to end, into shares by cost, one per warp, and what several shares found of a sequence is
// merged by log-sum-exp.
//
// Layouts of a page of one KV head, K of all its KV entries and then V of all its KV entries:
//   kRows  the byte layouts of docs/design/methods/triaxialkv.md#bytes (pack.h, packed_page.h): int2, int4
//   with groups of scale_group,
//          fp8 E4M3 with scale 1. Pages of 16, 32, 64 or 128 KV entries; int2: a multiple of scale_group.
//   kFast  records of 128 KV entries in tensor-core order (pack_fast.h): int2, int4, keys per channel, values
//   per
//          token. The wide part is bf16 rows in pages of a multiple of 16, swizzled as in attention_decode.h:
//          KV entries that do not fill a record yet.
//   kFp4   fp4 rows (pack_low_bit.h), all of them in the wide part. Pages of 16, 32, 64 or 128 KV entries.
//   kKivi  int2 rows as in kRows, and bf16 pages as in kFast for KV entries whose values are exact: the
//   newest
//          ones (their keys may be packed already, docs/design/methods/triaxialkv.md#numbers: then the page
//          has them as they read back).
//
// A part may end inside a page. Keys of int2 rows share scales along tokens, and so do all of kFast: such a
// group or record must have been packed whole, though only its first KV entries are read.
//
// KV entries that an eviction left in the middle of a page may be named dead: they are not read (what they
// hold must still be numbers).
//
// REQUIRES: |q| and |q * key scale| below 65504 (products are made in fp16). Any value scale is right.
//
// Floor: bytes / 4.69 TB/s; bytes per KV entry are packed_page_bytes() / page tokens. Measured:
// kernels/README.md.

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
enum class PackedLayout : uint32_t { kRows, kFast, kFp4, kKivi };

struct PackedSequence {
  uint32_t q_row = 0;                  // of its first query head, in q and out
  uint32_t column = 0;                 // of its head in a page of several heads
  uint32_t table[kPackedParts] = {};   // where each part's pages start in `pages`
  uint32_t tokens[kPackedParts] = {};  // none at all: the output is 0
};

struct PackedDecodeShape {
  PackedLayout layout = PackedLayout::kFast;
  uint32_t head_dim = 128;    // 64 or 128
  uint32_t group = 4;         // query heads per KV head, 1 to 8
  uint32_t scale_group = 32;  // kRows, kKivi: values that share a scale: 32, 64 or 128
  uint32_t page_tokens[kPackedParts] = {128, 128, 16};  // by part; kFast: 128, 128 and any of the four
  uint32_t heads_per_page = 1;                          // page p, column c is block p * heads_per_page + c
  uint32_t sequences = 0;
  uint32_t ctas = 132;
};

// Device memory, all of it; `plan` and `workspace` belong to this kernel between a plan and its launches.
struct PackedDecodeArgs {
  const void* pool[kPackedParts] = {};  // of each part's pages, 16-byte aligned
  const uint32_t* pages = nullptr;
  const PackedSequence* table = nullptr;  // [sequences]
  const __nv_bfloat16* q = nullptr;       // [rows][head_dim]
  __nv_bfloat16* out = nullptr;           // [rows][head_dim]
  float scale = 0;                        // usually 1 / sqrt(head_dim); positive
  void* plan = nullptr;                   // packed_plan_bytes()
  void* workspace = nullptr;              // packed_workspace_bytes(), zero before the first launch
  // By part, 4 words per page and column: bit t says that KV entry t is read. Null: all KV entries of that
  // part.
  const uint32_t* live[kPackedParts] = {};
};

// K and V of a page of one KV head.
// kFp4 has no other part than the wide one, kKivi no int4.
constexpr uint64_t packed_page_bytes(const PackedDecodeShape& s, PackedPart part) {
  const uint32_t bits = part == kPartInt2 ? 2 : 4;
  if (s.layout == PackedLayout::kFast && part != kPartHighPrecision) {
    return record_bytes(bits, s.head_dim) + value_record_bytes(bits, s.head_dim);
  }
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

// Cuts the sequences (their lengths as they are on the device now). One plan serves every layer whose
// lengths are the same. One small kernel. cudaErrorInvalidValue: a shape that cannot be.
cudaError_t plan_packed_decode(const PackedDecodeShape& shape, const PackedDecodeArgs& args,
                               cudaStream_t stream);
// REQUIRES: planned for these lengths and this shape.
cudaError_t packed_decode(const PackedDecodeShape& shape, const PackedDecodeArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_PACKED_PACKED_DECODE_H_
