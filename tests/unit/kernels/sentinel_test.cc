// I-1 and I-2 (docs/design/methods/intentkv.md#dead-slot): the requirements on a dropped slot, checked with
// an attention written for this test.

#include <doctest/doctest.h>

#include <numeric>

#include "kernels/scoring/keep_metrics.h"
#include "tests/unit/kernels/shapes.h"

using namespace kvtwin;
using namespace kvtwin::kernels;
using namespace kvtwin::testing;

namespace {

// Attention over all rows; rows whose `live` is false get the logit -inf.
std::vector<double> masked_attention(const float* q, const Tensor& k, const Tensor& v,
                                     const std::vector<bool>& live) {
  std::vector<double> logits;
  for (uint32_t p = 0; p < k.rows; ++p) {
    logits.push_back(live[p] ? product(q, k.at(0, p), k.dim) / std::sqrt(double(k.dim)) : -INFINITY);
  }
  const std::vector<double> weights = softmax_of(logits);
  std::vector<double> out(v.dim, 0.0);
  for (uint32_t p = 0; p < k.rows; ++p) {
    for (uint32_t c = 0; c < v.dim; ++c) out[c] += weights[p] * v.at(0, p)[c];
  }
  return out;
}

std::vector<bool> random_live(Prng* prng, uint32_t rows) {
  std::vector<bool> live(rows);
  for (uint32_t p = 0; p < rows; ++p) live[p] = p == 0 || prng->chance(1, 3);
  return live;
}

// An unmodified kernel over a slot map whose dropped entries all point at one row: key `sentinel`, value 0.
std::vector<double> with_sentinel(const float* q, const Tensor& k, const Tensor& v,
                                  const std::vector<bool>& live, const std::vector<float>& sentinel) {
  Tensor keys = k, values = v;
  for (uint32_t p = 0; p < k.rows; ++p) {
    if (live[p]) continue;
    std::copy(sentinel.begin(), sentinel.end(), keys.at(0, p));
    std::fill_n(values.at(0, p), v.dim, 0.0f);
  }
  return masked_attention(q, keys, values, std::vector<bool>(k.rows, true));
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t c = 0; c < a.size(); ++c) sum += (a[c] - b[c]) * (a[c] - b[c]);
  return std::sqrt(sum);
}

double length(const std::vector<double>& a) { return distance(a, std::vector<double>(a.size(), 0.0)); }

}  // namespace

TEST_CASE("I-1 removing the dropped entries gives the masked attention, for q and for -q") {
  Prng prng(71);
  for (int round = 0; round < 50; ++round) {
    const uint32_t rows = static_cast<uint32_t>(prng.range(1, 80)), dim = 16;
    const Tensor k = random_tensor(&prng, 1, rows, dim, 2.0f), v = random_tensor(&prng, 1, rows, dim);
    Tensor q = random_tensor(&prng, 1, 1, dim, 3.0f);
    const std::vector<bool> live = random_live(&prng, rows);
    RowSet retained;
    for (uint32_t p = 0; p < rows; ++p) {
      if (live[p]) retained.push_back(p);
    }
    for (int sign = 0; sign < 2; ++sign) {
      std::vector<double> stripped(dim);
      attention_output({q.view(), {}, k.view(), {rows, {}}, {}, false}, v.view(), 0, 0, retained, stripped);
      CHECK(distance(stripped, masked_attention(q.at(0, 0), k, v, live)) < 1e-12);
      for (float& x : q.values) x = -x;
    }
  }
}

TEST_CASE(
    "I-2 a constant sentinel key is no mask: for q or for -q it changes the output, for every constant") {
  Prng prng(72);
  const uint32_t rows = 60, dim = 16;
  for (int round = 0; round < 100; ++round) {
    const Tensor k = random_tensor(&prng, 1, rows, dim, 2.0f), v = random_tensor(&prng, 1, rows, dim);
    Tensor q = random_tensor(&prng, 1, 1, dim, 3.0f);
    const std::vector<bool> live = random_live(&prng, rows);
    std::vector<float> sentinel(dim);
    const uint64_t kind = prng.range(0, 3);
    const float size = static_cast<float>(prng.range(1, 1000));
    for (float& x : sentinel) x = kind == 0 ? 0.0f : kind == 1 ? -size : size * uniform(&prng);
    double worst = 0;
    for (int sign = 0; sign < 2; ++sign) {
      const std::vector<double> right = masked_attention(q.at(0, 0), k, v, live);
      worst =
          std::max(worst, distance(with_sentinel(q.at(0, 0), k, v, live, sentinel), right) / length(right));
      for (float& x : q.values) x = -x;
    }
    CHECK(worst > 0.05);
  }
}

TEST_CASE("I-2 the wrong sign takes all of the mass: with a large constant the output goes to zero") {
  Prng prng(73);
  const uint32_t rows = 40, dim = 8;
  const Tensor k = random_tensor(&prng, 1, rows, dim), v = random_tensor(&prng, 1, rows, dim);
  const std::vector<bool> live = random_live(&prng, rows);
  const std::vector<float> sentinel(dim, -1e4f);
  int collapsed = 0;
  for (int round = 0; round < 200; ++round) {
    const Tensor q = random_tensor(&prng, 1, 1, dim, 3.0f);
    float sum = 0;
    for (const float x : q.values) sum += x;
    const bool wrong_sign = sum < 0;
    const std::vector<double> out = with_sentinel(q.at(0, 0), k, v, live, sentinel);
    CHECK((length(out) < 1e-6) == wrong_sign);
    collapsed += wrong_sign;
  }
  CHECK(collapsed > 60);  // about half of all queries
  CHECK(collapsed < 140);
}
