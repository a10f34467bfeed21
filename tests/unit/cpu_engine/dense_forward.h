// A reference forward pass in double precision, without pages, batches, chunks or caches. It computes the
// whole prompt at once with one loop per formula; the engine's logits must equal it.

#ifndef KVTWIN_TESTS_UNIT_CPU_ENGINE_DENSE_FORWARD_H_
#define KVTWIN_TESTS_UNIT_CPU_ENGINE_DENSE_FORWARD_H_

#include <cstdint>
#include <vector>

#include "models/weights/weights.h"

namespace kvtwin::testing {

// Rotated queries and keys, and values: [layer][token], all heads of a token in sequence.
struct DenseRows {
  std::vector<std::vector<std::vector<double>>> q, k, v;
};

// Logits [tokens][vocab]; also the layers' queries, keys and values if `rows` is given.
std::vector<double> dense_logits(const ModelWeights& weights, const std::vector<uint32_t>& tokens,
                                 DenseRows* rows = nullptr);

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_CPU_ENGINE_DENSE_FORWARD_H_
