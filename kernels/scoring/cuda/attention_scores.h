// Sums of attention probabilities by key, for a few query rows of each head, on the device: the attention of
// which SnapKV and its relatives, TOVA, FINCH, Judge Q, H2O, RaaS and KVzip make scores (score_math.h,
// AttentionScores).
//
//   sums[h][g][p] = sum over query rows i of weight(i) * softmax_p(scale * q[i][g] . K[p]),   p < visible(i)
//
// Queries and keys are bf16, products and sums fp32. A head has lanes() output rows of sums: one per query
// head of the group, or one for the group if logits are reduced before the softmax (TANGRAM). A head's KV
// entries ascend by position, so visibility is a count per query row. Keys are read twice: for the softmax
// denominators and for the probabilities. With at most eight (query head, query row) pairs, and without
// reduced logits, keys are read once and the workspace holds the logits (attention_scores_few.cu). One of the
// small kernels below then converts sums to scores.
//
// Bound, few query rows (TOVA): 2 * head_dim bytes per KV entry at 4.69 TB/s, otherwise twice that. Bound,
// many query rows: 4 * head_dim flops per (KV entry, query row, query head) and pass at 660 TFLOP/s, the peak
// of mma.sync; for SnapKV's 64 rows of four query heads this is 2.7 times the time of the bytes. Measured by
// kernels/bench/method_bench.cu: see kernels/README.md.

#ifndef KVTWIN_KERNELS_SCORING_CUDA_ATTENTION_SCORES_H_
#define KVTWIN_KERNELS_SCORING_CUDA_ATTENTION_SCORES_H_

#include "kernels/common/kv_entry_heads.h"

namespace kvtwin {

struct AttentionScoreHead {
  KvEntryHead kv_entries;
  uint32_t q_row = 0;    // its first query row
  uint32_t q_head = 0;   // its first query head
  uint32_t queries = 0;  // number of its query rows
  uint32_t visible = 0;  // index of its first query row in AttentionScoreArgs::visible
  uint32_t scored = 0;   // rows before the window; later rows must be retained
};

struct AttentionScoreArgs {
  KvEntryPool kv_entries;
  const AttentionScoreHead* heads = nullptr;  // [count]
  const __nv_bfloat16* q = nullptr;           // [rows][query_heads][head_dim], rows q_stride apart
  const uint32_t* visible = nullptr;          // by query row: number of rows that it sees; ascending
  float* sums = nullptr;                      // output row g of head h is at (h * lanes() + g) * stride
  uint64_t stride = 0;
  void* workspace = nullptr;  // attention_score_workspace_bytes(); aligned to 16
  float scale = 0;
  uint32_t count = 0, group = 1, q_stride = 0;
  uint32_t rows_max = 0, queries_max = 0;  // maxima over all heads
  bool join_logits = false;                // reduce the group's logits to the largest before the softmax
  bool weigh_visible = false;  // FINCH: each row is weighted by the number of KV entries that it sees
  bool largest = false;        // KVzip: the largest over the query rows instead of their sum

  __host__ __device__ uint32_t lanes() const { return join_logits ? 1 : group; }
};
size_t attention_score_workspace_bytes(const AttentionScoreArgs& args);
cudaError_t compute_attention_scores(const AttentionScoreArgs& args, cudaStream_t stream);

// ---- scores from sums

enum class AttentionScorePool : uint8_t { kNone, kAverage, kMax };
enum class AttentionScoreReduce : uint8_t { kMean, kMax, kSum };
struct WindowScoreArgs {
  AttentionScoreArgs attention_scores;  // as in the launch that computed the sums
  float* scores = nullptr;              // row i of head h at h * stride + i
  uint64_t stride = 0;
  uint32_t kernel = 1;  // odd, at most 12,031
  AttentionScorePool pool = AttentionScorePool::kNone;
  AttentionScoreReduce reduce = AttentionScoreReduce::kMean;
  bool pool_first = false;  // before the reduction over the group
  // For probe tokens (Judge Q, KVzip): rows before `skip` and from `scored` on are not written; row `skip` is
  // the first of `scores`.
  bool probes = false;
  uint32_t skip = 0;
};
// The last steps of score_window(): means over the query rows, pooled and reduced. Rows from `scored` on get
// infinity.
cudaError_t score_window_entries(const WindowScoreArgs& args, cudaStream_t stream);

struct LayerScoreArgs {
  AttentionScoreArgs attention_scores;
  float* scores = nullptr;
  uint64_t stride = 0;
  uint32_t kv_heads = 1;  // heads of one layer are consecutive and have equal rows
};
// The last step of score_tova(): the mean over all query heads of a layer, for each of its KV heads.
cudaError_t score_layer_entries(const LayerScoreArgs& args, cudaStream_t stream);

// score_raas_prompt(): q . K with the group's mean of the last query row. Uses no softmax, sums or workspace.
cudaError_t score_pointed_entries(const AttentionScoreArgs& attention_scores, float* scores, uint64_t stride,
                                  cudaStream_t stream);

struct StateUpdateArgs {
  AttentionScoreArgs attention_scores;
  float* scorer_state = nullptr;  // one per slot of the pool, in the order of its slots
  float alpha = 0;                // threshold of stamp_entries
  float now = 0;
};
// scorer_state += mean over the group: H2O's accumulators.
cudaError_t gather_state(const StateUpdateArgs& args, cudaStream_t stream);
// scorer_state = now where the mean over the group exceeds alpha: RaaS's stamps.
cudaError_t stamp_entries(const StateUpdateArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_SCORING_CUDA_ATTENTION_SCORES_H_
