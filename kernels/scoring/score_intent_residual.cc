#include "kernels/scoring/score_intent_residual.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "kernels/common/score_math.h"
#include "kernels/scoring/gate_weights.h"

namespace kvtwin::kernels {
namespace {

// out[rows] = w x + b, w [rows][columns].
void affine(const std::vector<float>& w, const std::vector<float>& b, const float* x, uint32_t columns,
            std::span<float> out) {
  for (size_t r = 0; r < out.size(); ++r) out[r] = dot(w.data() + r * columns, x, columns) + b[r];
}

float gelu(float x) { return 0.5f * x * (1.0f + std::erf(x * 0.70710678f)); }

// Keys and values of the span, projected once: [n][d] each.
struct SpanCache {
  uint32_t rows = 0;
  std::vector<float> keys, values;
};

SpanCache project_span(const IntentResidual& head, std::span<const float> span) {
  SpanCache cache;
  cache.rows = static_cast<uint32_t>(span.size() / head.dim);
  cache.keys.resize(span.size());
  cache.values.resize(span.size());
  for (uint32_t i = 0; i < cache.rows; ++i) {
    const size_t at = size_t{i} * head.dim;
    affine(head.wk, head.bk, &span[at], head.dim, std::span(cache.keys).subspan(at, head.dim));
    affine(head.wv, head.bv, &span[at], head.dim, std::span(cache.values).subspan(at, head.dim));
  }
  return cache;
}

// c_p from W_q x_p.
void attend(const IntentResidual& head, const SpanCache& cache, const std::vector<float>& query,
            std::span<float> out) {
  const uint32_t width = head.dim / head.heads;
  const float scale = 1.0f / std::sqrt(static_cast<float>(width));
  std::vector<float> logits(cache.rows), joined(head.dim, 0.0f);
  for (uint32_t a = 0; a < head.heads; ++a) {
    const size_t lane = size_t{a} * width;
    for (uint32_t i = 0; i < cache.rows; ++i) {
      logits[i] = dot(&query[lane], &cache.keys[size_t{i} * head.dim + lane], width) * scale;
    }
    softmax(logits);
    for (uint32_t i = 0; i < cache.rows; ++i) {
      for (uint32_t c = 0; c < width; ++c) {
        joined[lane + c] += logits[i] * cache.values[size_t{i} * head.dim + lane + c];
      }
    }
  }
  affine(head.wo, head.bo, joined.data(), head.dim, out);
}

}  // namespace

IntentResidual make_intent_residual(uint32_t dim, uint64_t seed) {
  IntentResidual head;
  head.dim = dim;
  KVT_CHECK(dim % head.heads == 0);
  const size_t square = size_t{dim} * dim;
  head.wq = seeded_weights(seed, 0, 3 * square, 3 * dim);
  head.bq = seeded_weights(seed, 1, dim, 3 * dim);
  head.wk = seeded_weights(seed, 2, square, dim);
  head.bk = seeded_weights(seed, 3, dim, dim);
  head.wv = seeded_weights(seed, 4, square, dim);
  head.bv = seeded_weights(seed, 5, dim, dim);
  head.wo = seeded_weights(seed, 6, square, dim);
  head.bo = seeded_weights(seed, 7, dim, dim);
  head.w1 = seeded_weights(seed, 8, size_t{head.hidden} * 4 * dim, 4 * dim);
  head.b1 = seeded_weights(seed, 9, head.hidden, 4 * dim);
  head.w2.assign(head.hidden, 0.0f);
  return head;
}

void intent_add_keys(uint32_t layers, const HeadsView& k, std::span<float> sum) {
  KVT_CHECK(sum.size() == size_t{k.rows} * k.dim && layers > 0);
  const float split = 1.0f / (static_cast<float>(layers) * static_cast<float>(k.heads));
  for (uint32_t h = 0; h < k.heads; ++h) {
    for (uint32_t p = 0; p < k.rows; ++p) {
      for (uint32_t c = 0; c < k.dim; ++c) sum[size_t{p} * k.dim + c] += k.row(h, p)[c] * split;
    }
  }
}

void intent_add_memory(uint32_t layers, uint32_t query_heads, std::span<const float> memory,
                       std::span<float> sum) {
  KVT_CHECK(memory.size() == sum.size() * query_heads && layers > 0);
  const float split = 1.0f / (static_cast<float>(layers) * static_cast<float>(query_heads));
  for (uint32_t j = 0; j < query_heads; ++j) {
    for (size_t c = 0; c < sum.size(); ++c) sum[c] += memory[j * sum.size() + c] * split;
  }
}

void intent_corrections(const IntentResidual& head, std::span<const float> kbar, std::span<const float> mbar,
                        std::span<const float> span, std::span<float> out) {
  const uint32_t dim = head.dim;
  KVT_CHECK(kbar.size() == out.size() * dim && mbar.size() == dim && span.size() % dim == 0);
  const SpanCache cache = head.cross_attention ? project_span(head, span) : SpanCache{};
  std::vector<float> features(size_t{4} * dim), query(dim), inner(head.hidden);
  for (size_t p = 0; p < out.size(); ++p) {
    const float* key = &kbar[p * dim];
    for (uint32_t c = 0; c < dim; ++c) {
      features[c] = key[c];
      features[dim + c] = mbar[c];
      features[2 * dim + c] = key[c] * mbar[c];
    }
    const std::span<float> context(features.data() + size_t{3} * dim, dim);
    std::fill(context.begin(), context.end(), 0.0f);
    if (cache.rows > 0) {
      affine(head.wq, head.bq, features.data(), 3 * dim, query);
      attend(head, cache, query, context);
    }
    affine(head.w1, head.b1, features.data(), 4 * dim, inner);
    for (float& value : inner) value = gelu(value);
    out[p] = dot(head.w2.data(), inner.data(), head.hidden) + head.b2;
  }
}

void intent_correct(const IntentResidual& head, std::span<const float> corrections, std::span<float> scores) {
  KVT_CHECK(corrections.size() == scores.size());
  const float gain = std::clamp(head.gain, 0.0f, head.gain_max);
  for (size_t p = 0; p < scores.size(); ++p) scores[p] += gain * corrections[p];
}

}  // namespace kvtwin::kernels
