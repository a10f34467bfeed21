// out[i] = gate[i] / (1 + e^-gate[i]) * up[i].

#ifndef KVTWIN_KERNELS_DENSE_SILU_MUL_H_
#define KVTWIN_KERNELS_DENSE_SILU_MUL_H_

#include <cstdint>

namespace kvtwin::kernels {

// out may be gate or up.
void silu_mul_ref(const float* gate, const float* up, uint64_t count, float* out);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_DENSE_SILU_MUL_H_
