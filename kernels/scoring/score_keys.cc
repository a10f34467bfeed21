#include "kernels/scoring/score_keys.h"

#include <algorithm>
#include <vector>

#include "engine/base/check.h"
#include "kernels/common/score_math.h"

namespace kvtwin::kernels {

void score_knorm(const HeadsView& k, ScoreView out) {
  KVT_CHECK(out.heads == k.heads && out.rows == k.rows);
  for (uint32_t h = 0; h < k.heads; ++h) {
    for (uint32_t i = 0; i < k.rows; ++i) out.row(h)[i] = -norm2(k.row(h, i), k.dim);
  }
}

void score_keydiff(const HeadsView& k, ScoreView out) {
  KVT_CHECK(out.heads == k.heads && out.rows == k.rows);
  std::vector<double> sum(k.dim);
  std::vector<float> anchor(k.dim), lengths(k.rows);
  for (uint32_t h = 0; h < k.heads; ++h) {
    std::fill(sum.begin(), sum.end(), 0.0);
    for (uint32_t i = 0; i < k.rows; ++i) {
      const float* key = k.row(h, i);
      lengths[i] = norm2(key, k.dim);
      const double scale = 1.0 / std::max(lengths[i], 1e-12f);
      for (uint32_t c = 0; c < k.dim; ++c) sum[c] += key[c] * scale;
    }
    for (uint32_t c = 0; c < k.dim; ++c) anchor[c] = static_cast<float>(sum[c] / std::max(k.rows, 1u));
    const float anchor_length = norm2(anchor.data(), k.dim);
    for (uint32_t i = 0; i < k.rows; ++i) {
      const float cosine = dot(k.row(h, i), anchor.data(), k.dim) /
                           (std::max(lengths[i], 1e-8f) * std::max(anchor_length, 1e-8f));
      out.row(h)[i] = -cosine;
    }
  }
}

}  // namespace kvtwin::kernels
