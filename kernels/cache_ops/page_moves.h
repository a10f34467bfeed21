// Gathering and summarising KV entries of bf16 pages on the device. Layout of a page: kv_block.cuh.
//
// gather_entries: KV entry i of a sequence's target pages becomes KV entry retained[i] of its source pages.
// Used for compaction after dropping and for copies between page sizes. Bound: 4 * head_dim bytes read and as
// many written per KV entry.
//
// summarise_pages: the summaries of kernels/select/page_summary.h (docs/design/methods/freekv.md#page-scores)
// from exact keys. Bound: 2 * head_dim bytes read per KV entry, 4 * head_dim written per page.
//
// Both at 4.69 TB/s.

#ifndef KVTWIN_KERNELS_CACHE_OPS_PAGE_MOVES_H_
#define KVTWIN_KERNELS_CACHE_OPS_PAGE_MOVES_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvtwin {

struct PageSide {
  const uint32_t* pages = nullptr;  // page tables
  uint32_t page_tokens = 16;        // 1, or a multiple of 16
  uint32_t heads_per_page = 1;      // page p, column c is block p * heads_per_page + c of the pool
};

struct GatherSequence {
  uint32_t first = 0;         // index of its first KV entry among those of all sequences; ascending
  uint32_t source_table = 0;  // index of its first source page
  uint32_t source_column = 0;
  uint32_t target_table = 0;
  uint32_t target_column = 0;
};

struct GatherArgs {
  const __nv_bfloat16* source_pool = nullptr;
  __nv_bfloat16* target_pool = nullptr;  // may be source_pool. REQUIRES: no block is both source and target.
  PageSide source, target;
  const GatherSequence* table = nullptr;  // [sequences + 1]; `first` of the last is the number of KV entries
  const uint32_t* retained = nullptr;     // [KV entries], relative to the sequence; null: all, in order
  uint32_t sequences = 0;
  uint32_t head_dim = 128;  // 64 or 128
  uint32_t ctas = 1056;     // fewer CTAs leave SMs to concurrent kernels
};
cudaError_t gather_entries(const GatherArgs& args, cudaStream_t stream);

enum class PageSummaryKind : uint8_t { kMinMax, kCuboid, kMean };

struct SummaryPage {
  uint32_t block = 0;
  uint32_t kv_entries = 0;  // KV entries to summarise, from the first; 0: nothing is written
  uint32_t target = 0;      // index of its summary in `out`
};
struct SummaryArgs {
  const __nv_bfloat16* pool = nullptr;
  const SummaryPage* pages = nullptr;  // [count]
  __nv_bfloat16* out = nullptr;  // [targets][high, low][head_dim]; sums in fp32 in the order of KV entries
  uint32_t count = 0;
  uint32_t page_tokens = 16;  // 1, or a multiple of 8
  uint32_t head_dim = 128;    // a multiple of 64
  PageSummaryKind kind = PageSummaryKind::kMinMax;
  uint32_t ctas = 132;  // upper limit; fewer CTAs leave SMs to concurrent kernels
};
cudaError_t summarise_pages(const SummaryArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_CACHE_OPS_PAGE_MOVES_H_
