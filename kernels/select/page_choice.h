// Chooses the pages that a decode reads, on the device: scores from summaries, the best pages, the pages
// missing from the request's slots, and whether the previous choice is still valid
// (docs/design/methods/freekv.md#page-scores, #step; defined by page_score.h and select.h). Nothing is copied
// to the host before the end of the step.
//
//   compare_queries  compares q with the previous query: heads whose query turned choose for this step, the
//                    others read their slots, and choose for the next step
//   score_pages      u_g[p] = sum_i max(q_g[i] high_p[i], q_g[i] low_p[i]) for every query head, or for the
//                    pooled query
//   choose_pages     pools u over the group and selects the best pages; lists the pages to recall before
//                    attention (this step) or after it (next step); writes the page tables that attention
//                    reads in this step
//   keep_queries     stores q as the previous query
//
// What is chosen for the next step delays nothing: it is scored and chosen concurrently with attention, from
// the stored query. A head's choice depends on its query alone, not on when it is made.
//
// A row is one decode; each of its KV heads chooses separately. With low <= high, as in every summary, the
// larger product is high's for positive q and low's otherwise: two fused multiplications per channel and
// head. Bound: score_pages reads 4 * head_dim bytes per page and KV head at 4.69 TB/s; choose_pages reads 4
// bytes per page, KV head and query head and is bound by latency. Measured by kernels/bench/choice_bench.cu:
// see kernels/README.md.

#ifndef KVTWIN_KERNELS_SELECT_PAGE_CHOICE_H_
#define KVTWIN_KERNELS_SELECT_PAGE_CHOICE_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cache_ops/recall_pages.h"
#include "kernels/select/page_score.h"

namespace kvtwin {

constexpr uint32_t kChosenMax = 1024;  // most pages that a KV head can choose

enum class Held : uint32_t {
  kInPlace,  // pages are read where they are; nothing moves
  kNothing,  // the slots are empty: every chosen page moves, the i-th into the i-th slot
  kFirst,    // slot i holds candidate i; missing pages move before attention
  kUnsure,   // the slots hold the pages in `held`; missing pages move before attention
  // As kUnsure, but compare_queries() decides: heads whose query did not turn read the pages in their slots,
  // and missing pages move after attention.
  kTrusted,
};

// One decode. Offsets refer to `lists` (ChoiceArgs::lists).
struct ChoiceRow {
  uint32_t row = 0;         // row of q
  uint32_t state = 0;       // row of held and q_before
  uint32_t candidates = 0;  // pages to choose from, at least `chosen`; 0: the row chooses nothing
  uint32_t owners = 0;      // lists[owners + i]: index of candidate i's summary and host page
  uint32_t slots = 0;       // lists[slots + i]: GPU page of slot i; unused with kInPlace
  uint32_t table =
      0;  // tables[table + h * table_stride + i]: the page where KV head h reads its i-th chosen page
  uint32_t table_stride = 0;
  Held held = Held::kInPlace;
  uint32_t no_more = 0;  // not 0: nothing moves after attention (the request ends with this step)
};

struct ChoiceShape {
  uint32_t head_dim = 128;  // 64 or 128
  uint32_t kv_heads = 8;
  uint32_t group = 4;    // query heads per KV head, 1 to 8
  uint32_t chosen = 32;  // pages per KV head, at most kChosenMax
  kernels::PagePooling pooling = kernels::PagePooling::kMeanS;
  float scale = 1;          // factor before a softmax
  double tau = 0.9;         // a query less similar than this has turned; <= -1: never
  uint32_t first_host = 0;  // host page of owner `o` is o - first_host
  uint32_t score_stride =
      0;  // elements between rows of scores; at least the most candidates, a multiple of 4

  __host__ __device__ bool softmax() const {
    return pooling == kernels::PagePooling::kMeanS || pooling == kernels::PagePooling::kMaxS;
  }
  __host__ __device__ bool pools_queries() const {
    return pooling == kernels::PagePooling::kMeanQ || pooling == kernels::PagePooling::kMaxQ;
  }
  // Rows of scores per KV head of a decode.
  __host__ __device__ uint32_t score_rows() const { return pools_queries() ? 1 : group; }
};

// Totals of one layer's choices over all rows and heads; the step reports them.
struct ChoiceCounts {
  uint32_t before = 0;       // pages moved before attention
  uint32_t after = 0;        // pages missing after it
  uint32_t moves_after = 0;  // those of them that move: not of rows with no_more
  uint32_t turned = 0;       // heads of trusted rows whose query turned, by compare_queries
};

// Which heads score_pages() and choose_pages() take.
enum class ChoosesFor : uint32_t { kThisStep, kNextStep };

// All pointers are to device memory; one layer.
struct ChoiceArgs {
  const ChoiceRow* rows = nullptr;
  uint32_t count = 0;
  const uint32_t* lists = nullptr;
  const __nv_bfloat16* summaries = nullptr;  // [owners][kv_heads][high, low][head_dim]
  const __nv_bfloat16* q = nullptr;          // [rows][kv_heads * group][head_dim]
  __nv_bfloat16* q_before = nullptr;         // [states][kv_heads * group][head_dim]
  uint32_t* held = nullptr;                  // [states][kv_heads][chosen]: the candidate in each slot
  float* scores = nullptr;                   // [count][kv_heads][score_rows()][score_stride]
  uint32_t* tables = nullptr;
  RecallMove* before = nullptr;    // [counts->before], unordered; capacity: count * kv_heads * chosen
  RecallMove* after = nullptr;     // [counts->moves_after], unordered; the same capacity
  ChoiceCounts* counts = nullptr;  // added to; zero before the first launch
  // [count][kv_heads]: forced recalls of heads whose pages move, instead of those that scores and query
  // decide (rows with empty slots excepted); scores are changed as by force_missing_ref. Null: not forced.
  const kernels::HeadRecall* forced_outcome = nullptr;
  // [count][kv_heads], written by compare_queries(): not 0: the head chooses for this step; 0: for the next
  // one. Null: all heads choose for this step.
  uint8_t* now = nullptr;
  ChoosesFor step = ChoosesFor::kThisStep;
  // [states][kv_heads][stay]: candidates that are not chosen, because they stay in slots of their own
  // (ShadowKV's outliers). REQUIRES: at least `chosen` candidates are left.
  const uint32_t* stays = nullptr;
  uint32_t stay = 0;
};

// Writes `now`, and the tables of the heads that choose for the next step. REQUIRES: args.now is not null.
cudaError_t compare_queries(const ChoiceShape& shape, const ChoiceArgs& args, cudaStream_t stream);
// For the next step q_before is scored: keep_queries() ran before.
cudaError_t score_pages(const ChoiceShape& shape, const ChoiceArgs& args, cudaStream_t stream);
// REQUIRES: score_pages with the same args ran before, and compare_queries if args.now is not null. Tables
// list GPU pages in order of position. The block of a move is GPU page * kv_heads + head.
cudaError_t choose_pages(const ChoiceShape& shape, const ChoiceArgs& args, cudaStream_t stream);

// Rows of q to store for the comparison in the next step.
constexpr uint32_t kNoState = 0xffffffffu;  // the row is not stored
struct QueryRetained {
  uint32_t row = 0, state = kNoState;
};
cudaError_t keep_queries(const QueryRetained* rows, uint32_t count, uint32_t numbers, const __nv_bfloat16* q,
                         __nv_bfloat16* q_before, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_SELECT_PAGE_CHOICE_H_
