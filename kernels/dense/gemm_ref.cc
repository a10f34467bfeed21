#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/units.h"
#include "kernels/common/wide.h"
#include "kernels/dense/gemm.h"

namespace kvtwin::kernels {
namespace {

// kRows rows of x times one panel: kRows * 16 sums stay in registers while the panel is read once.
template <uint32_t kWidth, uint32_t kRows>
[[gnu::always_inline]] inline void tile(const float* panel, const float* x, uint32_t in, float* sums) {
  Lanes<kWidth> acc[kRows]{};
  for (uint32_t k = 0; k < in; ++k) {
    Lanes<kWidth> w;
    load_lanes(panel + uint64_t{k} * kLanes, &w);
    for (uint32_t r = 0; r < kRows; ++r) add_product(x[uint64_t{r} * in + k], w, &acc[r]);
  }
// Without unrolling GCC keeps them in memory.
#pragma GCC unroll 8
  for (uint32_t r = 0; r < kRows; ++r) store_lanes(acc[r], sums + r * kLanes);
}

// Six rows keep the adders of a core busy and leave registers for the panel.
constexpr uint32_t kRowsMax = 6;

struct PanelTimes {
  template <uint32_t kWidth>
  [[gnu::always_inline]] static void run(const float* panel, const float* x, uint32_t rows, uint32_t in,
                                         float* sums) {
    switch (rows) {
      case 1:
        return tile<kWidth, 1>(panel, x, in, sums);
      case 2:
        return tile<kWidth, 2>(panel, x, in, sums);
      case 3:
        return tile<kWidth, 3>(panel, x, in, sums);
      case 4:
        return tile<kWidth, 4>(panel, x, in, sums);
      case 5:
        return tile<kWidth, 5>(panel, x, in, sums);
      default:
        return tile<kWidth, 6>(panel, x, in, sums);
    }
  }
};

}  // namespace

void pack_begin(uint32_t out, uint32_t in, PackedMatrix* to) {
  to->out = out;
  to->in = in;
  to->panels.assign(uint64_t{div_ceil(out, kLanes)} * kLanes * in, 0.0f);
}

void pack_rows(const float* w, uint32_t row_first, uint32_t rows, PackedMatrix* to) {
  KVT_CHECK(row_first % kLanes == 0);
  KVT_CHECK(uint64_t{row_first} + rows <= to->out);
  for (uint32_t r = 0; r < rows; ++r) {
    const uint32_t n = row_first + r;
    float* const panel = to->panels.data() + uint64_t{n / kLanes} * kLanes * to->in + n % kLanes;
    for (uint32_t k = 0; k < to->in; ++k) panel[uint64_t{k} * kLanes] = w[uint64_t{r} * to->in + k];
  }
}

void gemm_ref(const PackedMatrix& w, const float* bias, const float* x, uint32_t rows, float* y) {
  float sums[kRowsMax * kLanes];
  // One panel at a time: a panel and all rows fit in a core's caches, all panels do not.
  for (uint32_t n = 0; n < w.out; n += kLanes) {
    const float* const panel = w.panels.data() + uint64_t{n} * w.in;
    const uint32_t width = std::min(kLanes, w.out - n);
    for (uint32_t r = 0; r < rows; r += kRowsMax) {
      const uint32_t some = std::min(kRowsMax, rows - r);
      widest<PanelTimes>(panel, x + uint64_t{r} * w.in, some, w.in, sums);
      for (uint32_t i = 0; i < some; ++i) {
        float* const to = y + uint64_t{r + i} * w.out + n;
        for (uint32_t j = 0; j < width; ++j)
          to[j] = sums[i * kLanes + j] + (bias != nullptr ? bias[n + j] : 0);
      }
    }
  }
}

}  // namespace kvtwin::kernels
