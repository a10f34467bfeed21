// IntentKV's residual on the device: the corrections of score_intent_residual.h, added to the rule's scores
// (score_intent_cuda.h). Within fp32's rounding of the definition; all sums have a fixed order.
//
// Steps: intent_key_sums() for all layers, in order, then intent_correct_scores() on the rule's scores.
//
// Bound (Llama-3.1-8B's shape, d = 128), by rows C: keys are read once more than for the rule, 2 d bytes per
// entry and KV head at 4.69 TB/s: 36 us for 2,560 rows, 429 us for 30,720. The head takes 213,000
// multiply-adds per row in fp32: 16 and 195 us at 67 TFLOP/s. Measured by kernels/bench/method_bench.cu
// (H100, 3.35 TB/s): 384 and 1,680 us. The gap is the weights: each CTA of 32 rows reads 0.9 MB from L2,
// which 2,560 rows (80 CTAs on 132 SMs) cannot hide, and a CTA uses each weight for 32 rows only.

#ifndef KVTWIN_KERNELS_SCORING_CUDA_INTENT_RESIDUAL_CUDA_H_
#define KVTWIN_KERNELS_SCORING_CUDA_INTENT_RESIDUAL_CUDA_H_

#include "kernels/scoring/cuda/score_intent_cuda.h"
#include "kernels/scoring/score_intent.h"
#include "kernels/scoring/score_intent_residual.h"

namespace kvtwin {

constexpr uint32_t kIntentResidualHeads = 4, kIntentResidualHidden = 256;

// Where the weights begin in one array of floats: matrices as [inputs][outputs], transposed from the
// definition's.
struct IntentResidualLayout {
  uint32_t wq, bq, wk, bk, wv, bv, wo, bo, w1, b1, w2, total;
};
constexpr IntentResidualLayout intent_residual_layout(uint32_t dim) {
  IntentResidualLayout at{};
  uint32_t next = 0;
  const auto take = [&next](uint32_t* to, uint32_t floats) { *to = next, next += floats; };
  take(&at.wq, 3 * dim * dim), take(&at.bq, dim);
  take(&at.wk, dim * dim), take(&at.bk, dim), take(&at.wv, dim * dim), take(&at.bv, dim);
  take(&at.wo, dim * dim), take(&at.bo, dim);
  take(&at.w1, 4 * dim * kIntentResidualHidden), take(&at.b1, kIntentResidualHidden);
  take(&at.w2, kIntentResidualHidden);
  at.total = next;
  return at;
}
// REQUIRES: head.heads and head.hidden are the constants above.
std::vector<float> intent_residual_weights(const kernels::IntentResidual& head);

struct IntentResidualArgs {
  IntentScoreArgs rule;            // entries, heads, forced rows and sizes; head_dim 64 or 128
  const float* weights = nullptr;  // intent_residual_layout()
  const float* mbar = nullptr;     // [head_dim]: intent_add_memory() over the layers of the newest memory
  float b2 = 0, gain = 1;          // the gain is clipped
  bool cross_attention = true;
  uint32_t span_begin = 0, span_end = 0;  // rows of the query span
  uint32_t candidates = 0;                // rows that are not forced
  kernels::RuleNorm norm = kernels::RuleNorm::kTimesCandidates;
  float* workspace = nullptr;  // intent_residual_floats()
};
size_t intent_residual_floats(const IntentResidualArgs& args);

// Adds layers [first, first + count) to kbar in the workspace; layer 0 begins it. Reads these layers' keys.
cudaError_t intent_key_sums(const IntentResidualArgs& args, uint32_t first, uint32_t count,
                            cudaStream_t stream);
// scores[c * stride + i] = norm(rule)_i + gain * f_i for c < copies, where the rule's scores are those of
// copy 0; forced rows get 0.
cudaError_t intent_correct_scores(const IntentResidualArgs& args, float* scores, uint64_t stride,
                                  uint32_t copies, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_SCORING_CUDA_INTENT_RESIDUAL_CUDA_H_
