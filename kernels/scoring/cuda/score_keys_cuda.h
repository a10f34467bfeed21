// Scores from keys or positions alone on the device: Knorm, KeyDiff (score_keys.h), StreamingLLM and random
// (score_position.h). fp32 scores from bf16 keys.
//
// Bound, per KV entry at 4.69 TB/s: Knorm reads 2 * head_dim bytes and writes 4; KeyDiff reads twice that
// (its anchor is the mean of all unit keys); position scores write 4. Measured by
// kernels/bench/method_bench.cu: see kernels/README.md.

#ifndef KVTWIN_KERNELS_SCORING_CUDA_SCORE_KEYS_CUDA_H_
#define KVTWIN_KERNELS_SCORING_CUDA_SCORE_KEYS_CUDA_H_

#include "kernels/common/kv_entry_heads.h"

namespace kvtwin {

struct KeyScoreArgs {
  KvEntryPool kv_entries;
  const KvEntryHead* heads = nullptr;  // [count]
  float* scores = nullptr;             // row i of head h at h * stride + i
  uint64_t stride = 0;
  uint32_t count = 0;
  uint32_t rows_max = 0;       // most rows of a head
  float* workspace = nullptr;  // KeyDiff: keydiff_floats()
};

cudaError_t score_knorm_entries(const KeyScoreArgs& args, cudaStream_t stream);
size_t keydiff_floats(uint32_t heads, uint32_t rows_max, uint32_t head_dim);
cudaError_t score_keydiff_entries(const KeyScoreArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_SCORING_CUDA_SCORE_KEYS_CUDA_H_
