#include <cmath>

#include "kernels/common/wide.h"
#include "kernels/dense/rms_norm.h"

namespace kvtwin::kernels {
namespace {

struct NormRows {
  template <uint32_t kWidth>
  [[gnu::always_inline]] static void run(const float* x, const float* weight, float eps, uint64_t rows,
                                         uint32_t width, float* out) {
    for (uint64_t r = 0; r < rows; ++r) {
      const float* const row = x + r * width;
      const float mean = dot<kWidth>(row, row, width) / static_cast<float>(width);
      const float factor = 1.0f / std::sqrt(mean + eps);
      for (uint32_t i = 0; i < width; ++i) out[r * width + i] = weight[i] * (row[i] * factor);
    }
  }
};

}  // namespace

void rms_norm_ref(const float* x, const float* weight, float eps, uint64_t rows, uint32_t width, float* out) {
  widest<NormRows>(x, weight, eps, rows, width, out);
}

}  // namespace kvtwin::kernels
