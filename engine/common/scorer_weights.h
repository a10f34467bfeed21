// ScorerWeights are the trained weights of a scorer, loaded from a safetensors file; or drawn from a seed, so
// that every method runs on a model without trained weights. Drawn weights rank reproducibly, not well.
//
// Names in a file, all float, row-major (shapes: kernels/scoring/score_gate.h, score_intent_residual.h):
//   judge_q          soft_tokens [rows][hidden]
//   fastkvzip        layers.L.gate.wq, bq, q_norm, wk, k_norm, k_base, bias
//   trimkv           layers.L.gate.w1, b1, w2, b2
//   intent_residual  residual.wq, bq, wk, bk, wv, bv, wo, bo, w1, b1, w2, b2, gain
// Other tensors are ignored.

#ifndef KVTWIN_ENGINE_COMMON_SCORER_WEIGHTS_H_
#define KVTWIN_ENGINE_COMMON_SCORER_WEIGHTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "kernels/scoring/gate_weights.h"
#include "kernels/scoring/score.h"
#include "kernels/scoring/score_intent_residual.h"
#include "models/catalog/llm.h"

namespace kvtwin::cpu {

struct ScorerWeights {
  std::vector<kernels::FastKvzipWeights> fastkvzip;  // by layer
  std::vector<kernels::TrimKvWeights> trimkv;
  std::vector<float> soft_tokens;  // [rows][hidden]
  kernels::IntentResidual residual;

  // `probe_tokens`: the number of soft tokens.
  static ScorerWeights drawn(const kernels::ScorerDefinition& scorer, const LlmSpec& llm,
                             uint32_t probe_tokens, uint64_t seed);
  // Fails if the file does not exist, or a tensor is missing or has another size.
  static Result<ScorerWeights> load(const kernels::ScorerDefinition& scorer, const LlmSpec& llm,
                                    uint32_t probe_tokens, const std::string& path);
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_COMMON_SCORER_WEIGHTS_H_
