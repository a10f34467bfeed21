// out[r][i] = x[r][i] / sqrt(mean over i of x[r][i]^2 + eps) * weight[i].

#ifndef KVTWIN_KERNELS_DENSE_RMS_NORM_H_
#define KVTWIN_KERNELS_DENSE_RMS_NORM_H_

#include <cstdint>

namespace kvtwin::kernels {

// x, out [rows][width], weight [width]; out may be x.
void rms_norm_ref(const float* x, const float* weight, float eps, uint64_t rows, uint32_t width, float* out);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_DENSE_RMS_NORM_H_
