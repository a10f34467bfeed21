// IntentKV's rule on the device (score_intent.h): one score per token, the same for all heads, from a
// session's memory and bf16 keys; and the mean of a turn's query rows, with which the memory is updated.
//
// Scores are fp32, within rounding of the definition; the mean is bit-equal to the definition. Forced rows
// are not candidates: they do not enter any softmax, and their score is 0. All sums have a fixed order.
//
// The workspace holds logits: 4 bytes per query head, against 2 * head_dim bytes of key per KV head. As many
// layers are processed at once as fit `logits_max`.
//
// Bound: 2 * head_dim bytes read per KV entry and KV head, at 4.69 TB/s. Llama-3.1-8B: 36 us for 2,560 rows,
// 429 us for 30,720. Measured by kernels/bench/method_bench.cu (H200): 74 and 787 us.

#ifndef KVTWIN_KERNELS_SCORING_CUDA_SCORE_INTENT_CUDA_H_
#define KVTWIN_KERNELS_SCORING_CUDA_SCORE_INTENT_CUDA_H_

#include "kernels/common/kv_entry_heads.h"
#include "kernels/select/select_entries.h"

namespace kvtwin {

struct IntentScoreArgs {
  KvEntryPool kv_entries;
  const KvEntryHead* heads = nullptr;  // [layers][kv_heads]; all have `rows` rows at the same positions
  const RowRange* forced = nullptr;    // [forced_count]
  uint32_t forced_count = 0;
  const float* memory = nullptr;  // [layers][query_heads][head_dim]
  float scale = 1;                // of logits: 1 / (sqrt(head_dim) * temperature)
  uint32_t layers = 0, query_heads = 0, kv_heads = 0, rows = 0;
  float* workspace = nullptr;  // intent_floats()
  uint64_t logits_max =
      (uint64_t{32} << 20) / 4;  // most logits in the workspace; at least those of one layer are kept
};
size_t intent_floats(const IntentScoreArgs& args);

// Writes to the workspace the scores that layers [first, first + count) give each row. Reads these layers'
// keys.
cudaError_t intent_layers(const IntentScoreArgs& args, uint32_t first, uint32_t count, cudaStream_t stream);
// After all layers: writes row i's score, times `factor`, to scores[c * stride + i] for c < copies. `best`:
// writes the larger of that and what is there.
cudaError_t intent_scores(const IntentScoreArgs& args, float factor, bool best, float* scores,
                          uint64_t stride, uint32_t copies, cudaStream_t stream);

// out[l][c] = mean over rows of q[l * layer_stride + row * width + c]; without rows: zeros.
cudaError_t intent_means(const __nv_bfloat16* q, uint64_t layer_stride, uint32_t layers, uint32_t rows,
                         uint32_t width, float* out, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_SCORING_CUDA_SCORE_INTENT_CUDA_H_
