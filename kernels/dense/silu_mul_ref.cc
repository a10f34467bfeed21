#include "kernels/common/exact_exp_lanes.h"
#include "kernels/dense/silu_mul.h"

namespace kvtwin::kernels {

namespace {

struct SiluTimes {
  template <uint32_t kWidth>
  [[gnu::always_inline]] static void run(const float* gate, const float* up, uint64_t count, float* out) {
    uint64_t i = 0;
    for (; i + kWidth <= count; i += kWidth) {
      Register<kWidth> g, u;
      std::memcpy(&g, gate + i, sizeof g);
      std::memcpy(&u, up + i, sizeof u);
      Register<kWidth> power = -g;
      exact_exp_register<kWidth>(&power);
      const Register<kWidth> product = g / (1.0f + power) * u;
      std::memcpy(out + i, &product, sizeof product);
    }
    for (; i < count; ++i) out[i] = gate[i] / (1.0f + exact_exp(-gate[i])) * up[i];
  }
};

}  // namespace

void silu_mul_ref(const float* gate, const float* up, uint64_t count, float* out) {
  widest<SiluTimes>(gate, up, count, out);
}

}  // namespace kvtwin::kernels
