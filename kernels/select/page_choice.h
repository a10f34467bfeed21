// Which pages a decode reads, chosen on the device: scores from summaries, the best of them, what is missing
// in the request's slots, and whether the last choice still holds (docs/design/methods/freekv.md#page-scores,
// #step; defined by page_score.h and select.h). Nothing of it comes back to the host before the step's end.
//
//   score_pages    u_g[p] = sum_i max(q_g[i] high_p[i], q_g[i] low_p[i]), for every query head, or for the
//                  pooled query
//   choose_pages   pools u over the group, takes the best; compares q with the query before; says what moves
//                  before attention (heads whose query turned) and what after it; writes read tables
//   keep_queries   q becomes the query before
//
// One row is one decode; its KV heads choose apart. With low <= high, as every summary has it, the larger
// product is high's where q is positive and low's elsewhere: two fused multiplications a channel and head.
// Floors: score_pages 4 * head_dim bytes per page and KV head at 4.69 TB/s; choose_pages is latency, 4 bytes
// per page, KV head and query head. Measured: kernels/README.md, by kernels/bench/choice_bench.cu.

#ifndef KVTWIN_KERNELS_SELECT_PAGE_CHOICE_H_
#define KVTWIN_KERNELS_SELECT_PAGE_CHOICE_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cache_ops/recall_pages.h"
#include "kernels/select/page_score.h"

namespace kvtwin {

constexpr uint32_t kChosenMax = 1024;  // pages that one KV head can choose

enum class Held : uint32_t {
  kInPlace,  // pages stay where they are; nothing moves
  kNothing,  // the slots hold nothing yet: all that is chosen comes, the i-th into the i-th slot
  kFirst,    // the i-th slot holds candidate i; what is missing comes before attention
  kUnsure,   // the slots hold what was noted; what is missing comes before attention
  // Likewise, but heads whose query did not turn read what they hold, and what is missing comes after it.
  kTrusted,
};

// One decode that chooses. `lists` are numbers on the device (ChoiceArgs::lists).
struct ChoiceRow {
  uint32_t row = 0;         // of q
  uint32_t state = 0;       // of held and q_before
  uint32_t candidates = 0;  // pages that can be chosen, at least `chosen`
  uint32_t owners = 0;      // lists[owners + i]: number of candidate i's summary, and of its host page
  uint32_t slots = 0;       // lists[slots + i]: GPU page that is slot i; not read in place
  uint32_t table = 0;  // tables[table + h * table_stride + i]: where KV head h reads its i-th chosen page
  uint32_t table_stride = 0;
  Held held = Held::kInPlace;
  uint32_t no_more = 0;  // not 0: nothing moves after attention (the request has ended by then)
};

struct ChoiceShape {
  uint32_t head_dim = 128;  // 64 or 128
  uint32_t kv_heads = 8;
  uint32_t group = 4;    // query heads per KV head, 1 to 8
  uint32_t chosen = 32;  // pages per KV head, at most kChosenMax
  kernels::PagePooling pooling = kernels::PagePooling::kMeanS;
  float scale = 1;            // before a softmax
  double tau = 0.9;           // a query that is less alike than this has turned; <= -1: none ever
  uint32_t first_host = 0;    // host page of owner `o`: o - first_host
  uint32_t score_stride = 0;  // numbers between rows of scores; at least the most candidates, a multiple of 4

  __host__ __device__ bool softmax() const {
    return pooling == kernels::PagePooling::kMeanS || pooling == kernels::PagePooling::kMaxS;
  }
  __host__ __device__ bool pools_queries() const {
    return pooling == kernels::PagePooling::kMeanQ || pooling == kernels::PagePooling::kMaxQ;
  }
  // Rows of scores of one KV head of one decode.
  __host__ __device__ uint32_t score_rows() const { return pools_queries() ? 1 : group; }
};

// What one layer's choices were, over all rows and heads: what a step reports.
struct ChoiceCounts {
  uint32_t before = 0;       // pages that move before attention
  uint32_t after = 0;        // and that were missing after it
  uint32_t moves_after = 0;  // of those, what does move: not of rows that say no_more
  uint32_t turned = 0;       // heads, of trusted rows
};

// Device memory, one layer's.
struct ChoiceArgs {
  const ChoiceRow* rows = nullptr;
  uint32_t count = 0;
  const uint32_t* lists = nullptr;
  const __nv_bfloat16* summaries = nullptr;  // [owners][kv_heads][high, low][head_dim]
  const __nv_bfloat16* q = nullptr;          // [rows][kv_heads * group][head_dim]
  __nv_bfloat16* q_before = nullptr;         // [states][kv_heads * group][head_dim]
  uint32_t* held = nullptr;                  // [states][kv_heads][chosen]: candidates, by slot
  float* scores = nullptr;                   // [count][kv_heads][score_rows()][score_stride]
  uint32_t* tables = nullptr;
  RecallMove* before = nullptr;    // [counts->before], in no order; room for all: count * kv_heads * chosen
  RecallMove* after = nullptr;     // [counts->moves_after], the same
  ChoiceCounts* counts = nullptr;  // added to: zero before
  // [count][kv_heads]: what heads do whose pages move, instead of what score and query say (not of rows that
  // hold nothing yet); scores are changed as by force_missing_ref. Null: as score and query say.
  const kernels::HeadRecall* forced_outcome = nullptr;
};

cudaError_t score_pages(const ChoiceShape& shape, const ChoiceArgs& args, cudaStream_t stream);
// REQUIRES: score_pages of the same args is before it. Tables name GPU pages in order of position. A move's
// block is (GPU page * kv_heads + head).
cudaError_t choose_pages(const ChoiceShape& shape, const ChoiceArgs& args, cudaStream_t stream);

// Rows of q that the next step compares with.
struct QueryRetained {
  uint32_t row = 0, state = 0;
};
cudaError_t keep_queries(const QueryRetained* rows, uint32_t count, uint32_t numbers, const __nv_bfloat16* q,
                         __nv_bfloat16* q_before, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_SELECT_PAGE_CHOICE_H_
