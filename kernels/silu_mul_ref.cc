#include "kernels/exact_exp.h"
#include "kernels/silu_mul.h"
#include "kernels/wide.h"

namespace kvtwin::kernels {

KVTWIN_WIDE void silu_mul_ref(const float* gate, const float* up, uint64_t count, float* out) {
  for (uint64_t i = 0; i < count; ++i) out[i] = gate[i] / (1.0f + exact_exp(-gate[i])) * up[i];
}

}  // namespace kvtwin::kernels
