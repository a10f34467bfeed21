// The forward pass once more: in double precision, without pages, batches, chunks or caches. The whole
// prompt at once, one loop per formula: what the engine's must equal.

#ifndef KVTWIN_TESTS_UNIT_CPU_ENGINE_DENSE_FORWARD_H_
#define KVTWIN_TESTS_UNIT_CPU_ENGINE_DENSE_FORWARD_H_

#include <cstdint>
#include <vector>

#include "models/weights/weights.h"

namespace kvtwin::testing {

// Rotated queries and keys, and values: [layer][token], all heads of a token one after the other.
struct DenseRows {
  std::vector<std::vector<std::vector<double>>> q, k, v;
};

// Logits [tokens][vocab]; what its layers saw, if `rows` is given.
std::vector<double> dense_logits(const ModelWeights& weights, const std::vector<uint32_t>& tokens,
                                 DenseRows* rows = nullptr);

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_CPU_ENGINE_DENSE_FORWARD_H_
