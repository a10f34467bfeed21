// KV entries of bf16 pages moved or summed up on the device. Pages: kv_block.cuh.
//
// gather_entries: KV entry i of a sequence's target pages becomes KV entry kept[i] of its source pages:
// compaction after an eviction, and a copy between page sizes. Floor: 4 * head_dim bytes read and as many
// written per entry. summarise_pages: kernels/select/page_summary.h in
// docs/design/methods/freekv.md#page-scores, from exact keys. Floor: 2
// * head_dim bytes read per KV entry, 4 * head_dim written per page. Both at 4.69 TB/s.

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
  uint32_t first = 0;         // of its KV entries among those of all sequences, ascending
  uint32_t source_table = 0;  // where its pages start
  uint32_t source_column = 0;
  uint32_t target_table = 0;
  uint32_t target_column = 0;
};

struct GatherArgs {
  const __nv_bfloat16* source_pool = nullptr;
  __nv_bfloat16* target_pool = nullptr;  // may be the source's; REQUIRES: no block is source and target
  PageSide source, target;
  const GatherSequence* table = nullptr;  // [sequences + 1]; the last says how many KV entries there are
  const uint32_t* retained = nullptr;     // [KV entries], of the sequence; null: all, in their order
  uint32_t sequences = 0;
  uint32_t head_dim = 128;  // 64 or 128
  uint32_t ctas = 1056;     // fewer leave room to others
};
cudaError_t gather_entries(const GatherArgs& args, cudaStream_t stream);

enum class PageSummaryKind : uint8_t { kMinMax, kCuboid, kMean };

struct SummaryPage {
  uint32_t block = 0;
  uint32_t kv_entries = 0;  // this many, the first ones; 0: nothing is written
  uint32_t target = 0;      // of its summary
};
struct SummaryArgs {
  const __nv_bfloat16* pool = nullptr;
  const SummaryPage* pages = nullptr;  // [count]
  __nv_bfloat16* out = nullptr;  // [targets][high, low][head_dim]; sums in fp32 in the order of KV entries
  uint32_t count = 0;
  uint32_t page_tokens = 16;  // 1, or a multiple of 8
  uint32_t head_dim = 128;    // a multiple of 64
  PageSummaryKind kind = PageSummaryKind::kMinMax;
  uint32_t ctas = 132;  // where there are many pages; fewer leave room to others
};
cudaError_t summarise_pages(const SummaryArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_CACHE_OPS_PAGE_MOVES_H_
