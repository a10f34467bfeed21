// Random tensors and edge shapes for kernel tests, and attention written out in double.

#ifndef KVTWIN_TESTS_UNIT_KERNELS_SHAPES_H_
#define KVTWIN_TESTS_UNIT_KERNELS_SHAPES_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "engine/base/prng.h"
#include "kernels/common/score_math.h"
#include "kernels/common/view.h"

namespace kvtwin::testing {

// Uniform in [-1, 1).
inline float uniform(Prng* prng) { return static_cast<float>(prng->next() >> 40) * 0x1p-23f - 1.0f; }

struct Tensor {
  uint32_t heads = 0, rows = 0, dim = 0;
  std::vector<float> values;  // [heads][rows][dim]

  float* at(uint32_t h, uint32_t i) { return values.data() + (size_t{h} * rows + i) * dim; }
  const float* at(uint32_t h, uint32_t i) const { return values.data() + (size_t{h} * rows + i) * dim; }
  kernels::HeadsView view() const { return kernels::packed_heads(values, heads, rows, dim); }
};

inline Tensor random_tensor(Prng* prng, uint32_t heads, uint32_t rows, uint32_t dim, float scale = 1.0f) {
  Tensor out{heads, rows, dim, std::vector<float>(size_t{heads} * rows * dim)};
  for (float& value : out.values) value = scale * uniform(prng);
  return out;
}

inline double product(const float* a, const float* b, uint32_t dim) {
  double sum = 0;
  for (uint32_t c = 0; c < dim; ++c) sum += double{a[c]} * double{b[c]};
  return sum;
}

// exp(x - max) / sum over the given logits.
inline std::vector<double> softmax_of(std::vector<double> logits) {
  double largest = -INFINITY, sum = 0;
  for (const double logit : logits) largest = std::max(largest, logit);
  for (double& logit : logits) sum += logit = std::exp(logit - largest);
  for (double& logit : logits) logit /= sum;
  return logits;
}

// Probabilities of keys [0, visible) of head h for one query; the others get 0.
inline std::vector<double> attend(const float* q, const Tensor& k, uint32_t h, uint32_t visible) {
  std::vector<double> logits(visible);
  for (uint32_t p = 0; p < visible; ++p) {
    logits[p] = product(q, k.at(h, p), k.dim) / std::sqrt(double(k.dim));
  }
  std::vector<double> out = softmax_of(std::move(logits));
  out.resize(k.rows, 0.0);
  return out;
}

inline double off_by(double a, double b) {
  return std::fabs(a - b) / std::max({std::fabs(a), std::fabs(b), 1e-6});
}

// KV heads, group, tokens, head dim: N <= w, one head, MHA, GQA 8, odd dims.
struct Shape {
  uint32_t heads, group, tokens, dim;
};
inline const std::vector<Shape>& edge_shapes() {
  static const std::vector<Shape> shapes = {{1, 1, 1, 8},   {1, 1, 5, 16},  {1, 1, 64, 4}, {4, 1, 33, 12},
                                            {2, 4, 40, 16}, {1, 8, 90, 20}, {2, 8, 17, 64}};
  return shapes;
}

// The positions of the last `rows` of `tokens` queries.
inline std::vector<uint32_t> last_positions(uint32_t tokens, uint32_t rows) {
  std::vector<uint32_t> out;
  for (uint32_t i = tokens - rows; i < tokens; ++i) out.push_back(i);
  return out;
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_KERNELS_SHAPES_H_
