#include "kernels/scoring/gate_weights.h"

#include <cmath>

#include "engine/base/prng.h"

namespace kvtwin::kernels {
namespace {

constexpr uint32_t kWidth = FastKvzipGate::kWidth;

}  // namespace

std::vector<float> seeded_weights(uint64_t seed, uint64_t field, size_t count, uint32_t inputs) {
  std::vector<float> out(count);
  const float bound = 1.0f / std::sqrt(static_cast<float>(inputs));
  for (size_t i = 0; i < count; ++i) {
    const float unit = static_cast<float>(draw({seed, field, i}) >> 40) * 0x1p-24f;
    out[i] = (2.0f * unit - 1.0f) * bound;
  }
  return out;
}

FastKvzipGate FastKvzipWeights::gate() const {
  return {heads, group, hidden, wq, bq, q_norm, wk, k_norm, k_base, bias};
}

FastKvzipWeights seeded_fastkvzip(uint32_t heads, uint32_t group, uint32_t hidden, uint64_t seed) {
  FastKvzipWeights out{heads, group, hidden, {}, {}, {}, {}, {}, {}, {}};
  const size_t query_heads = size_t{heads} * group;
  out.wq = seeded_weights(seed, 0, query_heads * kWidth * hidden, hidden);
  out.bq = seeded_weights(seed, 1, query_heads * kWidth, hidden);
  out.wk = seeded_weights(seed, 2, size_t{heads} * kWidth * hidden, hidden);
  out.k_base = seeded_weights(seed, 3, size_t{heads} * kWidth * kWidth, 1);
  out.bias = seeded_weights(seed, 4, query_heads, 1);
  out.q_norm.assign(kWidth, 1.0f);
  out.k_norm.assign(kWidth, 1.0f);
  return out;
}

TrimKvGate TrimKvWeights::gate() const {
  return {heads, hidden, width, GateActivation::kSilu, w1, b1, w2, b2};
}

TrimKvWeights seeded_trimkv(uint32_t heads, uint32_t hidden, uint32_t width, uint64_t seed) {
  TrimKvWeights out{heads, hidden, width, {}, {}, {}, {}};
  out.w1 = seeded_weights(seed, 0, size_t{width} * hidden, hidden);
  out.b1 = seeded_weights(seed, 1, width, hidden);
  out.w2 = seeded_weights(seed, 2, size_t{heads} * width, width);
  out.b2.assign(heads, 8.0f);
  return out;
}

std::vector<float> seeded_soft_tokens(uint32_t rows, uint32_t hidden, uint64_t seed) {
  return seeded_weights(seed, 0, size_t{rows} * hidden, 1);
}

}  // namespace kvtwin::kernels
