#include "kernels/exact_exp_lanes.h"
#include "kernels/silu_mul.h"

namespace kvtwin::kernels {

KVTWIN_WIDE void silu_mul_ref(const float* gate, const float* up, uint64_t count, float* out) {
  uint64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Lanes g, u;
    load_lanes(gate + i, &g);
    load_lanes(up + i, &u);
    Lanes power = -g;
    exact_exp_lanes(&power);
    store_lanes(g / (1.0f + power) * u, out + i);
  }
  for (; i < count; ++i) out[i] = gate[i] / (1.0f + exact_exp(-gate[i])) * up[i];
}

}  // namespace kvtwin::kernels
