// The forward pass once more: in double precision, without pages, batches, chunks or caches. The whole
// prompt at once, one loop per formula: what the engine's must equal.

#ifndef KVTWIN_TESTS_CPU_DENSE_FORWARD_H_
#define KVTWIN_TESTS_CPU_DENSE_FORWARD_H_

#include <cstdint>
#include <vector>

#include "models/weights.h"

namespace kvtwin::testing {

// Logits [tokens][vocab].
std::vector<double> dense_logits(const ModelWeights& weights, const std::vector<uint32_t>& tokens);

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_CPU_DENSE_FORWARD_H_
