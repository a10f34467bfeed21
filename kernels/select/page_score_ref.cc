#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/check.h"
#include "kernels/common/score_math.h"
#include "kernels/common/wide.h"
#include "kernels/select/page_score.h"
#include "kernels/select/select.h"

namespace kvtwin::kernels {
namespace {

// u of one query for all pages.
struct Bounds {
  template <uint32_t kWidth>
  [[gnu::always_inline]] static void run(const float* q, const PageVectors* pages, size_t count, uint32_t dim,
                                         float* out) {
    for (size_t p = 0; p < count; ++p) {
      Lanes<kWidth> sum{}, x, high, low;
      for (uint32_t i = 0; i < dim; i += kLanes) {
        const uint32_t some = dim - i < kLanes ? dim - i : kLanes;
        load_some_lanes(q + i, some, &x);
        load_some_lanes(pages[p].high + i, some, &high);
        load_some_lanes(pages[p].low + i, some, &low);
        for (uint32_t k = 0; k < sum.kRegisters; ++k) {
          const Register<kWidth> above = high.part[k] * x.part[k], below = low.part[k] * x.part[k];
          sum.part[k] += above > below ? above : below;
        }
      }
      out[p] = sum_lanes(sum);
    }
  }
};

bool pools_queries(PagePooling pooling) {
  return pooling == PagePooling::kMeanQ || pooling == PagePooling::kMaxQ;
}
bool pools_softmax(PagePooling pooling) {
  return pooling == PagePooling::kMeanS || pooling == PagePooling::kMaxS;
}
bool takes_largest(PagePooling pooling) {
  return pooling == PagePooling::kMaxQ || pooling == PagePooling::kMaxQk || pooling == PagePooling::kMaxS;
}

// Accumulates the g-th of `group` score vectors into pooled: the maximum, or the mean.
void join(bool largest, uint32_t g, uint32_t group, const float* one, size_t count, float* pooled) {
  for (size_t i = 0; i < count; ++i) {
    if (largest) {
      pooled[i] = g == 0 ? one[i] : std::max(pooled[i], one[i]);
    } else {
      pooled[i] = (g == 0 ? 0.0f : pooled[i]) + one[i];
      if (g + 1 == group) pooled[i] /= static_cast<float>(group);
    }
  }
}

}  // namespace

void score_pages_ref(PagePooling pooling, float scale, const float* q, uint32_t group, uint32_t dim,
                     std::span<const PageVectors> pages, float* scores) {
  KVT_CHECK(group > 0);
  const bool largest = takes_largest(pooling);
  if (pools_queries(pooling)) {
    std::vector<float> one(dim);
    for (uint32_t g = 0; g < group; ++g) join(largest, g, group, q + uint64_t{g} * dim, dim, one.data());
    widest<Bounds>(one.data(), pages.data(), pages.size(), dim, scores);
    return;
  }
  std::vector<float> own(pages.size());
  for (uint32_t g = 0; g < group; ++g) {
    widest<Bounds>(q + uint64_t{g} * dim, pages.data(), pages.size(), dim, own.data());
    if (pools_softmax(pooling)) {
      for (float& u : own) u *= scale;
      softmax(own);
    }
    join(largest, g, group, own.data(), own.size(), scores);
  }
}

float group_cosine_ref(const float* q, const float* before, uint32_t group, uint32_t dim) {
  float sum = 0;
  for (uint32_t g = 0; g < group; ++g) {
    const float* const a = q + uint64_t{g} * dim;
    const float* const b = before + uint64_t{g} * dim;
    const float norms = norm2(a, dim) * norm2(b, dim);
    // Rounding may exceed [-1, 1], and thresholds just outside of it mean always and never.
    if (norms > 0) sum += std::clamp(dot(a, b, dim) / norms, -1.0f, 1.0f);
  }
  return std::clamp(sum / static_cast<float>(group), -1.0f, 1.0f);
}

std::vector<SlotChange> replace_slots_ref(std::span<const uint32_t> chosen, std::span<const float> scores,
                                          uint32_t first, std::span<uint32_t> slots) {
  KVT_CHECK(chosen.size() <= slots.size());
  const std::vector<uint32_t> held = [&] {
    std::vector<uint32_t> sorted(slots.begin(), slots.end());
    std::sort(sorted.begin(), sorted.end());
    return sorted;
  }();
  std::vector<uint32_t> missing;
  std::set_difference(chosen.begin(), chosen.end(), held.begin(), held.end(), std::back_inserter(missing));
  std::vector<std::pair<uint64_t, uint32_t>> victims;  // order, slot
  for (uint32_t s = 0; s < slots.size(); ++s) {
    const uint32_t page = slots[s];
    if (std::binary_search(chosen.begin(), chosen.end(), page)) continue;
    const bool scored = page >= first && page - first < scores.size();
    victims.emplace_back(scored ? order_key(scores[page - first], page) : 0, s);
  }
  KVT_CHECK(missing.size() <= victims.size());
  std::sort(victims.begin(), victims.end());
  std::vector<SlotChange> changes;
  for (size_t i = 0; i < missing.size(); ++i) {
    slots[victims[i].second] = missing[i];
    changes.push_back({victims[i].second, missing[i]});
  }
  return changes;
}

void force_missing_ref(std::span<float> scores, uint32_t first, std::span<const uint32_t> slots,
                       uint32_t missing) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<std::pair<uint64_t, uint32_t>> held;  // order, slot; the worst first
  for (uint32_t s = 0; s < slots.size(); ++s) {
    const bool scored = slots[s] >= first && slots[s] - first < scores.size();
    held.emplace_back(scored ? order_key(scores[slots[s] - first], slots[s]) : 0, s);
  }
  std::sort(held.begin(), held.end());
  for (size_t i = 0; i < held.size(); ++i) {
    const uint32_t page = slots[held[i].second];
    if (page >= first && page - first < scores.size()) scores[page - first] = i < missing ? -kInf : kInf;
  }
}

}  // namespace kvtwin::kernels
