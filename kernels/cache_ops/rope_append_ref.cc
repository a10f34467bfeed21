#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/base/check.h"
#include "kernels/cache_ops/rope_append.h"

namespace kvtwin::kernels {
namespace {

// Cosines and sines of one position.
class Angles {
 public:
  explicit Angles(const RopeTable& rope)
      : rope_(rope), cosines_(rope.inv_freq.size()), sines_(cosines_.size()) {}

  void turn_to(uint32_t position) {
    for (size_t i = 0; i < cosines_.size(); ++i) {
      const auto angle = static_cast<double>(static_cast<float>(position) * rope_.inv_freq[i]);
      cosines_[i] = rope_.scale * static_cast<float>(std::cos(angle));
      sines_[i] = rope_.scale * static_cast<float>(std::sin(angle));
    }
  }

  void rotate(uint32_t heads, uint32_t head_dim, float* x) const {
    const uint32_t half = head_dim / 2;
    for (uint32_t h = 0; h < heads; ++h, x += head_dim) {
      for (uint32_t i = 0; i < half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cosines_[i] - b * sines_[i];
        x[i + half] = b * cosines_[i] + a * sines_[i];
      }
    }
  }

 private:
  const RopeTable& rope_;
  std::vector<float> cosines_, sines_;
};

}  // namespace

void rope_ref(const RopeTable& rope, uint32_t position, uint32_t heads, uint32_t head_dim, float* x) {
  KVT_CHECK(rope.inv_freq.size() * 2 == head_dim);
  Angles angles(rope);
  angles.turn_to(position);
  angles.rotate(heads, head_dim, x);
}

void rope_append_ref(const RopeTable& rope, std::span<const AppendRow> rows, uint32_t query_heads, float* q,
                     float* k, const float* v, const KvPages& kv) {
  KVT_CHECK(rope.inv_freq.size() * 2 == kv.head_dim);
  const uint64_t kv_width = uint64_t{kv.kv_heads} * kv.head_dim;
  Angles angles(rope);
  for (size_t r = 0; r < rows.size(); ++r) {
    KVT_CHECK(rows[r].slot < kv.page_tokens);
    angles.turn_to(rows[r].position);
    angles.rotate(query_heads, kv.head_dim, q + r * query_heads * kv.head_dim);
    angles.rotate(kv.kv_heads, kv.head_dim, k + r * kv_width);
    for (uint32_t h = 0; h < kv.kv_heads; ++h) {
      const uint64_t at = kv.at(rows[r].page, h, rows[r].slot);
      std::copy_n(k + r * kv_width + h * kv.head_dim, kv.head_dim, kv.keys + at);
      std::copy_n(v + r * kv_width + h * kv.head_dim, kv.head_dim, kv.values + at);
    }
  }
}

}  // namespace kvtwin::kernels
