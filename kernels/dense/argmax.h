// The token that a row of logits prefers: greedy sampling.

#ifndef KVTWIN_KERNELS_DENSE_ARGMAX_H_
#define KVTWIN_KERNELS_DENSE_ARGMAX_H_

#include <cstdint>

namespace kvtwin::kernels {

// Index of the largest of `count` logits; of equal ones the smallest index. NaN counts as -inf.
// REQUIRES: count > 0.
uint32_t argmax_ref(const float* logits, uint32_t count);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_DENSE_ARGMAX_H_
