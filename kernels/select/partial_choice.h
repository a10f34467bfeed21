// Chooses single tokens by partial queries and keys, on the device (InfiniGen, docs/design/methods/freekv.md
// #timelines; defined by cpu::choose_tokens and PartialKeys, engine/common/retrieval).
//
//   project_rows   rows of heads (queries, which are normed and rotated first, or keys) on the directions of
//                  their request: a few numbers of each head
//   score_tokens   products of every query head's partial query with the partial keys of all candidates
//   choose_tokens  how many tokens are near the best one, in the mean over the heads; so many of the best
//                  tokens of each KV head, and how attention reads them
//
// All KV heads of a row choose the same number of tokens. Sums are fp32. Bound: score_tokens reads 4 *
// columns bytes for each token and KV head at 4.69 TB/s; the others are bound by latency.

#ifndef KVTWIN_KERNELS_SELECT_PARTIAL_CHOICE_H_
#define KVTWIN_KERNELS_SELECT_PARTIAL_CHOICE_H_

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/attention/attention_rows.h"
#include "kernels/select/page_score.h"

namespace kvtwin {

struct ProjectedRow {
  uint32_t row = 0;       // of x
  uint32_t state = 0;     // whose directions
  uint32_t position = 0;  // by which it is rotated
  uint32_t target = 0;    // out[target * heads * columns]
};
struct ProjectArgs {
  const ProjectedRow* rows = nullptr;  // [count]
  uint32_t count = 0;
  const __nv_bfloat16* x = nullptr;                             // [rows][heads][head_dim]
  const float* directions = nullptr;                            // [states][kv_heads][columns][head_dim]
  float* out = nullptr;                                         // [][heads][columns]
  uint32_t heads = 0, kv_heads = 0, head_dim = 0, columns = 0;  // head_dim: at most 256
  const __nv_bfloat16* norm = nullptr;                          // [head_dim], or null: rows are not normed
  float norm_eps = 0;
  const float* inv_freq = nullptr;  // [head_dim / 2], or null: rows are not rotated
  float rope_scale = 1;
};
cudaError_t project_rows(const ProjectArgs& args, cudaStream_t stream);

// One decode. Offsets refer to `lists`.
struct TokenRow {
  uint32_t partial = 0;      // lists[partial + i]: the page of partial keys of the request's page i
  uint32_t first = 0;        // the first candidate's position; the last one's is first + candidates - 1
  uint32_t candidates = 0;   // at least `most`
  uint32_t host_copies = 0;  // lists[host_copies + i]: the host page of the request's page i
  uint32_t slots = 0;        // lists[slots + i]: GPU page of slot i, which chosen tokens fill in order
  uint32_t before = 0;       // KV entries that attention reads before the chosen ones
  uint32_t after = 0;        // and after them
};
struct TokenChoiceArgs {
  const TokenRow* rows = nullptr;  // [count]
  uint32_t count = 0;
  const uint32_t* lists = nullptr;
  const float* queries = nullptr;  // [count][kv_heads * group][columns]
  const float* partial = nullptr;  // [pages][page_tokens][kv_heads][columns]
  float* scores = nullptr;         // [count][kv_heads][group][score_stride]
  uint32_t* near = nullptr;        // [count]; zero before the first launch
  uint32_t* chosen = nullptr;      // [count][kv_heads][most]: positions - first, ascending
  uint32_t* numbers = nullptr;     // [count]: how many tokens each KV head has chosen
  QueryRow* reads = nullptr;       // [count][kv_heads]: kv_entries, sinks and gap are written
  uint32_t kv_heads = 0, group = 0, columns = 0, page_tokens = 0;
  uint32_t most = 0;          // tokens that a KV head can choose
  uint32_t score_stride = 0;  // at least the most candidates
  kernels::PagePooling pooling = kernels::PagePooling::kMeanQk;
  float scale = 1;   // of the scores that are compared with `margin`
  float margin = 0;  // a token is near if its score is more than the best one's, less this
};
cudaError_t score_tokens(const TokenChoiceArgs& args, cudaStream_t stream);
// REQUIRES: score_tokens with the same args ran before.
cudaError_t choose_tokens(const TokenChoiceArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_SELECT_PARTIAL_CHOICE_H_
