#include "kernels/scoring/score_raas.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/base/check.h"
#include "kernels/common/score_math.h"

namespace kvtwin::kernels {

void raas_attention(const RaasSpec& spec, const HeadsView& q, const HeadsView& key_min,
                    const HeadsView& key_max, ScoreView attention) {
  KVT_CHECK(attention.heads == key_min.heads && attention.rows == key_min.rows && q.rows > 0);
  const uint32_t group = q.heads / key_min.heads, dim = q.dim, pages = key_min.rows;
  const float scale = spec.scaled ? 1.0f / std::sqrt(static_cast<float>(dim)) : 1.0f;
  std::vector<float> bound(pages);
  for (uint32_t h = 0; h < attention.heads; ++h) {
    const std::span<float> out = attention.row(h);
    std::fill(out.begin(), out.end(), 0.0f);
    for (uint32_t g = 0; g < group; ++g) {
      const float* query = q.row(h * group + g, q.rows - 1);
      for (uint32_t page = 0; page < pages; ++page) {
        const float* low = key_min.row(h, page);
        const float* high = key_max.row(h, page);
        float sum = 0;
        for (uint32_t c = 0; c < dim; ++c) sum += std::max(query[c] * low[c], query[c] * high[c]);
        bound[page] = sum * scale;
      }
      softmax(bound);
      for (uint32_t page = 0; page < pages; ++page) out[page] += bound[page] / static_cast<float>(group);
    }
  }
}

void raas_touch(const RaasSpec& spec, std::span<const float> attention, uint32_t now,
                std::span<uint32_t> stamps) {
  KVT_CHECK(attention.size() == stamps.size());
  for (size_t page = 0; page < stamps.size(); ++page) {
    if (attention[page] > spec.alpha) stamps[page] = now;
  }
}

void score_raas(std::span<const uint32_t> stamps, uint32_t page_tokens, std::span<float> out) {
  KVT_CHECK(page_tokens > 0 && out.size() <= stamps.size() * page_tokens);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(stamps[i / page_tokens]);
}

void score_raas_prompt(const HeadsView& q, const HeadsView& k, ScoreView out) {
  KVT_CHECK(out.heads == k.heads && out.rows == k.rows && q.rows > 0);
  const uint32_t group = q.heads / k.heads;
  std::vector<float> mean(q.dim);
  for (uint32_t h = 0; h < k.heads; ++h) {
    std::fill(mean.begin(), mean.end(), 0.0f);
    for (uint32_t g = 0; g < group; ++g) {
      const float* query = q.row(h * group + g, q.rows - 1);
      for (uint32_t c = 0; c < q.dim; ++c) mean[c] += query[c] / static_cast<float>(group);
    }
    for (uint32_t i = 0; i < k.rows; ++i) out.row(h)[i] = dot(mean.data(), k.row(h, i), k.dim);
  }
}

}  // namespace kvtwin::kernels
