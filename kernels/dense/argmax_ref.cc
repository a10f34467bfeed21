#include <limits>

#include "kernels/dense/argmax.h"

namespace kvtwin::kernels {

uint32_t argmax_ref(const float* logits, uint32_t count) {
  uint32_t best = 0;
  float largest = -std::numeric_limits<float>::infinity();
  for (uint32_t i = 0; i < count; ++i) {
    if (logits[i] > largest) {  // false for NaN
      largest = logits[i];
      best = i;
    }
  }
  return best;
}

}  // namespace kvtwin::kernels
