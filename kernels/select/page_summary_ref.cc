#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "kernels/select/page_summary.h"

namespace kvtwin::kernels {
namespace {

void mean_of(const float* keys, uint32_t tokens, uint32_t dim, float* mean) {
  std::fill_n(mean, dim, 0.0f);
  for (uint32_t t = 0; t < tokens; ++t) {
    for (uint32_t i = 0; i < dim; ++i) mean[i] += keys[uint64_t{t} * dim + i];
  }
  for (uint32_t i = 0; i < dim; ++i) mean[i] /= static_cast<float>(tokens);
}

// Replaces the half-width of the box by the mean distance from its center.
void shrink(const float* keys, uint32_t tokens, uint32_t dim, float* high, float* low) {
  for (uint32_t i = 0; i < dim; ++i) {
    const float center = (high[i] + low[i]) * 0.5f;
    float radius = 0;
    for (uint32_t t = 0; t < tokens; ++t) radius += std::fabs(center - keys[uint64_t{t} * dim + i]);
    radius /= static_cast<float>(tokens);
    high[i] = center + radius;
    low[i] = center - radius;
  }
}

}  // namespace

void summarise_page_ref(SummaryKind kind, const float* keys, uint32_t tokens, uint32_t dim, float* high,
                        float* low) {
  KVT_CHECK(tokens > 0);
  if (kind == SummaryKind::kMean) {
    mean_of(keys, tokens, dim, high);
    std::copy_n(high, dim, low);
    return;
  }
  std::copy_n(keys, dim, high);
  std::copy_n(keys, dim, low);
  for (uint32_t t = 1; t < tokens; ++t) {
    for (uint32_t i = 0; i < dim; ++i) {
      const float key = keys[uint64_t{t} * dim + i];
      high[i] = std::max(high[i], key);
      low[i] = std::min(low[i], key);
    }
  }
  if (kind == SummaryKind::kCuboid) shrink(keys, tokens, dim, high, low);
}

}  // namespace kvtwin::kernels
