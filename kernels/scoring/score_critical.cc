#include "kernels/scoring/score_critical.h"

#include <cmath>
#include <vector>

#include "engine/base/check.h"
#include "kernels/common/score_math.h"
#include "kernels/select/select.h"

namespace kvtwin::kernels {

void output_norms(const OutputProjection& projection, const HeadsView& v, ScoreView norms) {
  KVT_CHECK(norms.heads == v.heads && norms.rows == v.rows && projection.query_heads % v.heads == 0);
  const size_t width = size_t{projection.query_heads} * v.dim;
  KVT_CHECK(projection.w.size() == width * projection.hidden);
  const uint32_t group = projection.query_heads / v.heads;
  for (uint32_t h = 0; h < v.heads; ++h) {
    for (uint32_t i = 0; i < v.rows; ++i) {
      double sum = 0;
      for (uint32_t g = 0; g < group; ++g) {
        const float* column = projection.w.data() + size_t{h * group + g} * v.dim;
        for (uint32_t r = 0; r < projection.hidden; ++r) {
          sum += std::fabs(dot(column + r * width, v.row(h, i), v.dim));
        }
      }
      norms.row(h)[i] = static_cast<float>(sum / group);
    }
  }
}

void score_critical(const OutputProjection& projection, const HeadsView& v, uint32_t first,
                    ScoreView scores) {
  KVT_CHECK(scores.heads == v.heads && scores.rows == v.rows);
  std::vector<float> norms(size_t{v.heads} * v.rows);
  const ScoreView norm_view = packed_scores(norms, v.heads, v.rows);
  output_norms(projection, v, norm_view);
  for (uint32_t h = 0; h < scores.heads; ++h) {
    const std::span<float> row = scores.row(h);
    RowSet forced;
    for (uint32_t i = 0; i < row.size(); ++i) {
      if (row[i] == kMustStay) forced.push_back(i);
    }
    const RowSet stay = select_rows(row, forced, first);
    for (uint32_t i = 0; i < row.size(); ++i) row[i] = (row[i] + 1e-4f) * norm_view.row(h)[i];
    for (const uint32_t i : stay) row[i] = kMustStay;
  }
}

}  // namespace kvtwin::kernels
