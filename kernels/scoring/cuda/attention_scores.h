// Attention of query rows over the KV entries of their head, on the device: what scorers are made of
// (score_math.h, Look). For SnapKV and its relatives, TOVA, FINCH, Judge Q, H2O, RaaS, KVzip.
//
//   sums[h][g][p] = sum over query rows i of weight(i) * softmax_p(scale * q[i][g] . K[p]),   p < visible(i)
//
// Queries and keys are bf16, products and sums fp32. A *lane* is a query head of the group, or all of them
// at once where their logits are joined first (TANGRAM). How many a query row sees is a number, because a
// head's KV entries ascend by position. Keys are read twice (once for the softmax's denominators, once for
// the probabilities); but where at most eight (query head, query row) pairs are scored and logits are not
// joined, keys are read once and the workspace holds the logits (attention_scores_few.cu). Then one of the
// small kernels below makes scores of the sums.
//
// Floor: 2 * head_dim bytes per KV entry at 4.69 TB/s where there are few query rows (TOVA), and twice that;
// 4
// * head_dim flops per (KV entry, query row, query head) and pass at 660 TFLOP/s, what mma.sync reaches,
// where there are many: SnapKV's 64 rows of four query heads are 2.7 times the bytes' time. kernels/README.md
// has the figures.

#ifndef KVTWIN_KERNELS_SCORING_CUDA_ATTENTION_SCORES_H_
#define KVTWIN_KERNELS_SCORING_CUDA_ATTENTION_SCORES_H_

#include "kernels/common/kv_entry_heads.h"

namespace kvtwin {

struct AttentionScoreHead {
  KvEntryHead kv_entries;
  uint32_t q_row = 0;    // its first query row
  uint32_t q_head = 0;   // its first query head
  uint32_t queries = 0;  // rows
  uint32_t visible = 0;  // of its query rows, in AttentionScoreArgs::visible
  uint32_t scored = 0;   // rows before the window: those behind it must stay
};

struct AttentionScoreArgs {
  KvEntryPool kv_entries;
  const AttentionScoreHead* heads = nullptr;  // [count]
  const __nv_bfloat16* q = nullptr;           // [rows][query_heads][head_dim], rows q_stride apart
  const uint32_t* visible = nullptr;  // by query row: how many rows it sees, from the first one; ascending
  float* sums = nullptr;              // lane g of head h at (h * lanes + g) * stride
  uint64_t stride = 0;
  void* workspace = nullptr;  // attention_score_workspace_bytes(); aligned to 16
  float scale = 0;
  uint32_t count = 0, group = 1, q_stride = 0;
  uint32_t rows_max = 0, queries_max = 0;  // no head has more
  bool join_logits = false;                // the largest of the group's logits, before the softmax
  bool weigh_visible = false;              // FINCH: each row counts as often as it sees KV entries
  bool largest = false;                    // KVzip: the largest over the rows instead of their sum

  __host__ __device__ uint32_t lanes() const { return join_logits ? 1 : group; }
};
size_t attention_score_workspace_bytes(const AttentionScoreArgs& args);
cudaError_t compute_attention_scores(const AttentionScoreArgs& args, cudaStream_t stream);

// ---- scores from sums

enum class AttentionScorePool : uint8_t { kNone, kAverage, kMax };
enum class AttentionScoreReduce : uint8_t { kMean, kMax, kSum };
struct WindowScoreArgs {
  AttentionScoreArgs attention_scores;  // that made the sums
  float* scores = nullptr;              // row i of head h at h * stride + i
  uint64_t stride = 0;
  uint32_t kernel = 1;  // odd, at most 12,031
  AttentionScorePool pool = AttentionScorePool::kNone;
  AttentionScoreReduce reduce = AttentionScoreReduce::kMean;
  bool pool_first = false;  // before the group is reduced
  // Of probes (Judge Q, KVzip): rows before `skip` and from `scored` on are not written, and the first that
  // is, is the first of `scores`.
  bool probes = false;
  uint32_t skip = 0;
};
// score_window()'s last steps: means over the query rows, pooled and reduced. Rows from `scored` on:
// infinity.
cudaError_t score_window_entries(const WindowScoreArgs& args, cudaStream_t stream);

struct LayerScoreArgs {
  AttentionScoreArgs attention_scores;
  float* scores = nullptr;
  uint64_t stride = 0;
  uint32_t kv_heads = 1;  // heads of one layer follow one another, with equal rows
};
// score_tova()'s last step: the mean over all query heads of a layer, for each of its heads.
cudaError_t score_layer_entries(const LayerScoreArgs& args, cudaStream_t stream);

// score_raas_prompt(): what the group's mean last query points at, q . K; without a softmax, sums or
// workspace.
cudaError_t score_pointed_entries(const AttentionScoreArgs& attention_scores, float* scores, uint64_t stride,
                                  cudaStream_t stream);

struct StateUpdateArgs {
  AttentionScoreArgs attention_scores;
  float* scorer_state = nullptr;  // one per slot of the pool, as KV entries lie there
  float alpha = 0;                // stamp_entries
  float now = 0;
};
// state += mean over the lanes: H2O's accumulators.
cudaError_t gather_state(const StateUpdateArgs& args, cudaStream_t stream);
// state = now where the mean over the lanes exceeds alpha: RaaS's stamps.
cudaError_t stamp_entries(const StateUpdateArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_SCORING_CUDA_ATTENTION_SCORES_H_
