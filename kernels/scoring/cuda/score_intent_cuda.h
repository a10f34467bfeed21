// IntentKV's rule on the device (score_intent.h): one score per token of a session's memory and bf16 keys,
// the same for all heads; and the mean of a turn's query rows, which its memory grows by.
//
// fp32 scores within rounding of the definition's; the mean is the definition's to the bit. Rows that are
// forced are no candidates: they count in no softmax, and their score is 0. All sums are in a fixed order.
//
// Logits are kept: 4 bytes for each query head where its key has 2 * head_dim for each KV head. As many
// layers are under way at once as `logits_max` has room for.
//
// Floor: 2 * head_dim bytes read per KV entry and KV head, at 4.69 TB/s. Llama-3.1-8B: 36 us for 2,560 rows,
// 429 for 30,720. Predicted: 60 and 520; measured (method_bench, H200): 74 and 787.

#ifndef KVTWIN_KERNELS_SCORING_CUDA_SCORE_INTENT_CUDA_H_
#define KVTWIN_KERNELS_SCORING_CUDA_SCORE_INTENT_CUDA_H_

#include "kernels/common/kv_entry_heads.h"
#include "kernels/select/select_entries.h"

namespace kvtwin {

struct IntentScoreArgs {
  KvEntryPool kv_entries;
  const KvEntryHead* heads = nullptr;  // [layers][kv_heads]; all have `rows` rows, of the same positions
  const RowRange* forced = nullptr;    // [forced_count]
  uint32_t forced_count = 0;
  const float* memory = nullptr;  // [layers][query_heads][head_dim]
  float scale = 1;                // of logits: 1 / (sqrt(head_dim) * temperature)
  uint32_t layers = 0, query_heads = 0, kv_heads = 0, rows = 0;
  float* workspace = nullptr;                      // intent_floats()
  uint64_t logits_max = (uint64_t{32} << 20) / 4;  // that are kept; those of one layer whatever this says
};
size_t intent_floats(const IntentScoreArgs& args);

// What layers [first, first + count) say of each row goes to the workspace. Reads these layers' keys.
cudaError_t intent_layers(const IntentScoreArgs& args, uint32_t first, uint32_t count, cudaStream_t stream);
// Once all layers were: row i's score at scores[c * stride + i], for c < copies.
cudaError_t intent_scores(const IntentScoreArgs& args, float* scores, uint64_t stride, uint32_t copies,
                          cudaStream_t stream);

// out[l][c] = mean over rows of q[l * layer_stride + row * width + c]; no rows: zeros.
cudaError_t intent_means(const __nv_bfloat16* q, uint64_t layer_stride, uint32_t layers, uint32_t rows,
                         uint32_t width, float* out, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_SCORING_CUDA_SCORE_INTENT_CUDA_H_
