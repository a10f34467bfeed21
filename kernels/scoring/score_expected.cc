#include "kernels/scoring/score_expected.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "kernels/common/score_math.h"

namespace kvtwin::kernels {
namespace {

// R Sigma R^T: rotates rows, then columns.
std::vector<float> conjugated(const PlaneMap& turn, const std::vector<float>& sigma, uint32_t dim) {
  std::vector<float> out(sigma.size()), column(dim);
  for (uint32_t r = 0; r < dim; ++r) apply_planes(turn, &sigma[size_t{r} * dim], &out[size_t{r} * dim]);
  for (uint32_t c = 0; c < dim; ++c) {
    for (uint32_t r = 0; r < dim; ++r) column[r] = out[size_t{r} * dim + c];
    apply_planes(turn, column.data(), column.data());
    for (uint32_t r = 0; r < dim; ++r) out[size_t{r} * dim + c] = column[r];
  }
  return out;
}

float quadratic(const std::vector<float>& sigma, const float* x, uint32_t dim) {
  float sum = 0;
  for (uint32_t r = 0; r < dim; ++r) sum += x[r] * dot(&sigma[size_t{r} * dim], x, dim);
  return sum;
}

}  // namespace

QueryMoments query_moments(const HeadsView& q_hat, uint32_t j, uint32_t first, bool covariance) {
  const uint32_t dim = q_hat.dim, begin = q_hat.rows > first ? first : 0, n = q_hat.rows - begin;
  QueryMoments out;
  std::vector<double> sum(dim, 0.0);
  for (uint32_t i = begin; i < q_hat.rows; ++i) {
    for (uint32_t c = 0; c < dim; ++c) sum[c] += q_hat.row(j, i)[c];
  }
  out.mean.resize(dim);
  for (uint32_t c = 0; c < dim; ++c) out.mean[c] = n == 0 ? 0.0f : static_cast<float>(sum[c] / n);
  if (!covariance) return out;
  std::vector<double> products(size_t{dim} * dim, 0.0), centred(dim);
  for (uint32_t i = begin; i < q_hat.rows; ++i) {
    for (uint32_t c = 0; c < dim; ++c) centred[c] = double{q_hat.row(j, i)[c]} - out.mean[c];
    for (uint32_t r = 0; r < dim; ++r) {
      for (uint32_t c = 0; c < dim; ++c) products[size_t{r} * dim + c] += centred[r] * centred[c];
    }
  }
  out.covariance.resize(products.size());
  for (size_t e = 0; e < products.size(); ++e) {
    out.covariance[e] = n == 0 ? 0.0f : static_cast<float>(products[e] / n);
  }
  return out;
}

void expected_logits(const ExpectedSpec& spec, const QueryMoments& moments, const PlaneMap& mean_turn,
                     const HeadsView& k, uint32_t head, std::vector<float>* logits) {
  const uint32_t dim = k.dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim)), twice = 2.0f * static_cast<float>(dim);
  const bool second = spec.covariance && !moments.covariance.empty();
  logits->resize(k.rows);
  if (spec.rotate_keys) {
    const PlaneMap back = transposed(mean_turn);
    std::vector<float> key(dim);
    for (uint32_t p = 0; p < k.rows; ++p) {
      apply_planes(back, k.row(head, p), key.data());
      float logit = dot(moments.mean.data(), key.data(), dim) * scale;
      if (second) logit += quadratic(moments.covariance, key.data(), dim) / twice;
      (*logits)[p] = logit;
    }
    return;
  }
  std::vector<float> mean(dim), sigma;
  apply_planes(mean_turn, moments.mean.data(), mean.data());
  if (second) sigma = conjugated(mean_turn, moments.covariance, dim);
  for (uint32_t p = 0; p < k.rows; ++p) {
    float logit = dot(mean.data(), k.row(head, p), dim) * scale;
    if (second) logit += quadratic(sigma, k.row(head, p), dim) / twice;
    (*logits)[p] = logit;
  }
}

void score_expected(const ExpectedSpec& spec, const RopePlanes& planes, const HeadsView& q_hat,
                    const HeadsView& k, const HeadsView& v, Positions positions, uint32_t tokens,
                    ScoreView out) {
  KVT_CHECK(out.heads == k.heads && out.rows == k.rows && q_hat.heads % k.heads == 0);
  KVT_CHECK(planes.inv_freq.size() * 2 == k.dim && q_hat.dim == k.dim);
  const uint32_t group = q_hat.heads / k.heads;
  const PlaneMap turn = mean_rotation(planes, tokens, spec.future);
  std::vector<double> sum(k.rows);
  std::vector<float> logits;
  for (uint32_t head = 0; head < k.heads; ++head) {
    uint32_t evaluated = 0;  // rows before it are sinks
    while (evaluated < k.rows && positions.at(head, evaluated) < spec.sink) ++evaluated;
    std::fill(sum.begin(), sum.end(), 0.0);
    for (uint32_t g = 0; g < group; ++g) {
      const QueryMoments moments = query_moments(q_hat, head * group + g, spec.first, spec.covariance);
      expected_logits(spec, moments, turn, k, head, &logits);
      softmax(std::span(logits).subspan(evaluated));
      for (uint32_t p = evaluated; p < k.rows; ++p) sum[p] += logits[p];
    }
    for (uint32_t p = 0; p < k.rows; ++p) {
      float score = static_cast<float>(sum[p] / group) + spec.eps;
      if (spec.value_norm) score *= norm2(v.row(head, p), v.dim);
      out.row(head)[p] = p < evaluated ? kMustStay : score;
    }
  }
}

void unrotate_queries(const RopePlanes& planes, const HeadsView& q, std::span<const uint32_t> q_positions,
                      std::span<float> out) {
  KVT_CHECK(q_positions.size() == q.rows && out.size() == size_t{q.heads} * q.rows * q.dim);
  for (uint32_t j = 0; j < q.heads; ++j) {
    for (uint32_t i = 0; i < q.rows; ++i) {
      unrotate(planes, q_positions[i], q.row(j, i), out.data() + (size_t{j} * q.rows + i) * q.dim);
    }
  }
}

}  // namespace kvtwin::kernels
