#include "kernels/scoring/score_expected.h"

#include <doctest/doctest.h>

#include "kernels/common/score_math.h"
#include "kernels/select/select.h"
#include "tests/unit/kernels/shapes.h"

using namespace kvtwin;
using namespace kvtwin::kernels;
using namespace kvtwin::testing;

namespace {

std::vector<float> frequencies(uint32_t dim) {
  std::vector<float> out;
  for (uint32_t f = 0; f < dim / 2; ++f) out.push_back(std::pow(100.0f, -2.0f * float(f) / float(dim)));
  return out;
}

// R as a full matrix, [d][d].
std::vector<double> mean_turn(const std::vector<float>& inv_freq, uint32_t first, uint32_t count) {
  const size_t half = inv_freq.size(), dim = 2 * half;
  std::vector<double> out(dim * dim, 0.0);
  for (size_t f = 0; f < half; ++f) {
    double c = 0, s = 0;
    for (uint32_t t = first; t < first + count; ++t) {
      const double angle = static_cast<float>(t) * inv_freq[f];
      c += std::cos(angle) / count;
      s += std::sin(angle) / count;
    }
    out[f * dim + f] = out[(f + half) * dim + f + half] = c;
    out[f * dim + f + half] = -s;
    out[(f + half) * dim + f] = s;
  }
  return out;
}

std::vector<double> times(const std::vector<double>& a, const std::vector<double>& b, size_t dim,
                          bool transpose_b) {
  std::vector<double> out(dim * dim, 0.0);
  for (size_t r = 0; r < dim; ++r) {
    for (size_t c = 0; c < dim; ++c) {
      for (size_t n = 0; n < dim; ++n)
        out[r * dim + c] += a[r * dim + n] * b[transpose_b ? c * dim + n : n * dim + c];
    }
  }
  return out;
}

struct Moments {
  std::vector<double> mean, sigma;
};

Moments moments_of(const Tensor& q, uint32_t j, uint32_t first) {
  const uint32_t dim = q.dim, begin = q.rows > first ? first : 0, n = q.rows - begin;
  Moments out{std::vector<double>(dim, 0.0), std::vector<double>(size_t{dim} * dim, 0.0)};
  for (uint32_t i = begin; i < q.rows; ++i) {
    for (uint32_t c = 0; c < dim; ++c) out.mean[c] += double{q.at(j, i)[c]} / n;
  }
  for (uint32_t i = begin; i < q.rows; ++i) {
    for (uint32_t r = 0; r < dim; ++r) {
      for (uint32_t c = 0; c < dim; ++c) {
        out.sigma[r * dim + c] += (q.at(j, i)[r] - out.mean[r]) * (q.at(j, i)[c] - out.mean[c]) / n;
      }
    }
  }
  return out;
}

// The scores of docs/design/methods/uniform.md#expected-attention, with matrices written out.
std::vector<double> naive(const ExpectedSpec& spec, const std::vector<float>& inv_freq, const Tensor& q,
                          const Tensor& k, const Tensor& v, uint32_t h, uint32_t tokens) {
  const uint32_t dim = k.dim, group = q.heads / k.heads, begin = std::min(spec.sink, k.rows);
  const std::vector<double> turn = mean_turn(inv_freq, tokens, spec.future);
  std::vector<double> out(k.rows, 0.0);
  for (uint32_t g = 0; g < group; ++g) {
    const Moments m = moments_of(q, h * group + g, spec.first);
    const std::vector<double> sigma = times(times(turn, m.sigma, dim, false), turn, dim, true);
    std::vector<double> logits;
    for (uint32_t p = begin; p < k.rows; ++p) {
      double linear = 0, square = 0;
      for (uint32_t r = 0; r < dim; ++r) {
        for (uint32_t c = 0; c < dim; ++c) {
          linear += turn[r * dim + c] * m.mean[c] * k.at(h, p)[r];
          square += k.at(h, p)[r] * sigma[r * dim + c] * k.at(h, p)[c];
        }
      }
      logits.push_back(linear / std::sqrt(double(dim)) + (spec.covariance ? square / (2.0 * dim) : 0.0));
    }
    if (logits.empty()) continue;
    const std::vector<double> row = softmax_of(logits);
    for (uint32_t p = begin; p < k.rows; ++p) out[p] += row[p - begin] / group;
  }
  for (uint32_t p = begin; p < k.rows; ++p) {
    const double length = std::sqrt(product(v.at(h, p), v.at(h, p), v.dim));
    out[p] = (out[p] + spec.eps) * (spec.value_norm ? length : 1.0);
  }
  return out;
}

std::vector<float> scores_of(const ExpectedSpec& spec, const std::vector<float>& inv_freq, const Tensor& q,
                             const Tensor& k, const Tensor& v, uint32_t tokens) {
  std::vector<float> out(size_t{k.heads} * k.rows);
  score_expected(spec, {inv_freq, 1.0f}, q.view(), k.view(), v.view(), {k.rows, {}}, tokens,
                 packed_scores(out, k.heads, k.rows));
  return out;
}

}  // namespace

TEST_CASE("Expected Attention: both forms agree with the formula written out in matrices") {
  Prng prng(41);
  for (const Shape& shape : edge_shapes()) {
    const uint32_t dim = shape.dim == 64 ? 16 : shape.dim;
    const Tensor q = random_tensor(&prng, shape.heads * shape.group, shape.tokens, dim, 2.0f);
    const Tensor k = random_tensor(&prng, shape.heads, shape.tokens, dim, 2.0f);
    const Tensor v = random_tensor(&prng, shape.heads, shape.tokens, dim);
    const std::vector<float> inv_freq = frequencies(dim);
    for (const float eps : {0.0f, 0.01f}) {  // kvpress's, TANGRAM's
      ExpectedSpec spec;
      spec.eps = eps;
      spec.future = 16;
      for (const bool covariance : {true, false}) {
        spec.covariance = covariance;
        for (const bool rotate_keys : {false, true}) {
          spec.rotate_keys = rotate_keys;
          const std::vector<float> scores = scores_of(spec, inv_freq, q, k, v, shape.tokens);
          for (uint32_t h = 0; h < shape.heads; ++h) {
            const std::vector<double> expected = naive(spec, inv_freq, q, k, v, h, shape.tokens);
            for (uint32_t p = 0; p < shape.tokens; ++p) {
              const float score = scores[h * shape.tokens + p];
              if (p < spec.sink) {
                CHECK(score == kMustStay);
              } else {
                CHECK(off_by(score, expected[p]) < 2e-4);
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE(
    "Expected Attention: without covariance and with one future position it is attention of the mean query") {
  Prng prng(42);
  const uint32_t dim = 16, tokens = 50;
  const Tensor k = random_tensor(&prng, 1, tokens, dim, 2.0f), v = random_tensor(&prng, 1, tokens, dim);
  const Tensor one = random_tensor(&prng, 1, 1, dim, 2.0f);
  Tensor q{1, 20, dim, {}};
  for (int i = 0; i < 20; ++i) q.values.insert(q.values.end(), one.values.begin(), one.values.end());
  ExpectedSpec spec;
  spec.sink = 0;
  spec.future = 1;
  spec.value_norm = false;
  const std::vector<float> inv_freq = frequencies(dim);
  std::vector<float> turned(dim);
  apply_planes(rotation_at({inv_freq, 1.0f}, tokens), one.at(0, 0), turned.data());
  const std::vector<double> expected = attend(turned.data(), k, 0, tokens);
  for (const bool covariance : {false, true}) {  // equal queries: Sigma is 0 in any case
    spec.covariance = covariance;
    const std::vector<float> scores = scores_of(spec, inv_freq, q, k, v, tokens);
    for (uint32_t p = 0; p < tokens; ++p) CHECK(off_by(scores[p], expected[p]) < 5e-5);
  }
}

TEST_CASE(
    "Expected Attention: a change of basis of queries and keys within the rotary planes changes no score") {
  Prng prng(43);
  const uint32_t dim = 12, tokens = 40;
  Tensor q = random_tensor(&prng, 2, tokens, dim, 2.0f), k = random_tensor(&prng, 1, tokens, dim, 2.0f);
  const Tensor v = random_tensor(&prng, 1, tokens, dim);
  const std::vector<float> inv_freq = frequencies(dim);
  ExpectedSpec spec;
  spec.future = 32;
  const std::vector<float> before = scores_of(spec, inv_freq, q, k, v, tokens);
  PlaneMap basis;  // a rotation of each plane commutes with rope
  for (uint32_t f = 0; f < dim / 2; ++f) {
    const double angle = 3.0 * uniform(&prng);
    basis.c.push_back(static_cast<float>(std::cos(angle)));
    basis.s.push_back(static_cast<float>(std::sin(angle)));
  }
  for (uint32_t i = 0; i < tokens; ++i) {
    for (uint32_t j = 0; j < 2; ++j) apply_planes(basis, q.at(j, i), q.at(j, i));
    apply_planes(basis, k.at(0, i), k.at(0, i));
  }
  const std::vector<float> after = scores_of(spec, inv_freq, q, k, v, tokens);
  for (uint32_t p = spec.sink; p < tokens; ++p) CHECK(off_by(before[p], after[p]) < 2e-4);
}

TEST_CASE(
    "Expected Attention: the mean of rotations is not a rotation, and cached queries un-rotate exactly") {
  Prng prng(44);
  const std::vector<float> inv_freq = frequencies(16);
  const PlaneMap mean = mean_rotation({inv_freq, 1.0f}, 1000, 512);
  const double length = std::hypot(double{mean.c[0]}, double{mean.s[0]});
  CHECK(length < 0.1);  // the fastest plane averages out
  const PlaneMap single = mean_rotation({inv_freq, 1.0f}, 1000, 1);
  for (size_t f = 0; f < 8; ++f) CHECK(std::hypot(single.c[f], single.s[f]) == doctest::Approx(1.0));

  const Tensor plain = random_tensor(&prng, 3, 9, 16);
  Tensor cached = plain, back = plain;
  std::vector<uint32_t> positions;
  for (uint32_t i = 0; i < 9; ++i) positions.push_back(100 + 7 * i);
  for (uint32_t j = 0; j < 3; ++j) {
    for (uint32_t i = 0; i < 9; ++i) {
      apply_planes(rotation_at({inv_freq, 1.0f}, positions[i]), plain.at(j, i), cached.at(j, i));
    }
  }
  unrotate_queries({inv_freq, 1.0f}, cached.view(), positions, back.values);
  for (size_t i = 0; i < plain.values.size(); ++i) CHECK(std::fabs(plain.values[i] - back.values[i]) < 1e-5);
}

TEST_CASE("Expected Attention: the first four queries are left out only if there are more") {
  Prng prng(45);
  const Tensor q = random_tensor(&prng, 1, 4, 8);
  const QueryMoments few = query_moments(q.view(), 0, 4, true);
  for (uint32_t c = 0; c < 8; ++c) {
    double mean = 0;
    for (uint32_t i = 0; i < 4; ++i) mean += q.at(0, i)[c] / 4.0;
    CHECK(few.mean[c] == doctest::Approx(mean));
  }
  Tensor more = random_tensor(&prng, 1, 6, 8);
  const QueryMoments before = query_moments(more.view(), 0, 4, true);
  more.at(0, 3)[0] = 1000.0f;
  const QueryMoments after = query_moments(more.view(), 0, 4, true);
  CHECK(before.mean == after.mean);
  CHECK(before.covariance == after.covariance);
}
