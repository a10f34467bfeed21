// Owned weights of trained scorers (FastKVzip's and TrimKV's gates, Judge Q's soft tokens), and seeded random
// weights, with which these methods run on untrained models. Seeded weights rank KV entries reproducibly, not
// well.

#ifndef KVTWIN_KERNELS_SCORING_GATE_WEIGHTS_H_
#define KVTWIN_KERNELS_SCORING_GATE_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/scoring/score_gate.h"

namespace kvtwin::kernels {

// `count` values, uniform in +-1 / sqrt(inputs); each is a draw from (seed, field, index).
std::vector<float> seeded_weights(uint64_t seed, uint64_t field, size_t count, uint32_t inputs);

// Shapes as in FastKvzipGate.
struct FastKvzipWeights {
  uint32_t heads = 0, group = 1, hidden = 0;
  std::vector<float> wq, bq, q_norm, wk, k_norm, k_base, bias;

  FastKvzipGate gate() const;  // views this object; valid while it lives unchanged
};
FastKvzipWeights seeded_fastkvzip(uint32_t heads, uint32_t group, uint32_t hidden, uint64_t seed);

// Shapes as in TrimKvGate. The last bias is 8: beta starts near 1 (docs/design/methods/uniform.md#trimkv).
struct TrimKvWeights {
  uint32_t heads = 0, hidden = 0, width = 0;
  std::vector<float> w1, b1, w2, b2;

  TrimKvGate gate() const;  // the same
};
TrimKvWeights seeded_trimkv(uint32_t heads, uint32_t hidden, uint32_t width, uint64_t seed);

// Judge Q's soft tokens: embedding rows [rows][hidden], scaled as the embeddings of a seeded model.
std::vector<float> seeded_soft_tokens(uint32_t rows, uint32_t hidden, uint64_t seed);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SCORING_GATE_WEIGHTS_H_
