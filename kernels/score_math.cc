#include "kernels/score_math.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "kernels/exact_exp.h"

namespace kvtwin::kernels {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

}  // namespace

float norm2(const float* a, uint32_t dim) { return std::sqrt(dot(a, a, dim)); }

void softmax(std::span<float> logits) {
  float largest = kHidden;
  for (const float logit : logits) largest = std::max(largest, logit);
  if (largest == kHidden) return std::fill(logits.begin(), logits.end(), 0.0f);
  double sum = 0;
  for (float& logit : logits) {
    if (logit == logit) logit = logit == kHidden ? 0.0f : exact_exp(logit - largest);
    sum += logit;
  }
  const float scale = static_cast<float>(1.0 / sum);
  for (float& logit : logits) logit *= scale;
}

void pool_rows(Pool pool, uint32_t kernel, std::span<const float> in, std::span<float> out) {
  KVT_CHECK(in.size() == out.size() && kernel % 2 == 1);
  const size_t half = pool == Pool::kNone ? 0 : kernel / 2;
  for (size_t i = 0; i < in.size(); ++i) {
    const size_t first = i < half ? 0 : i - half, last = std::min(in.size() - 1, i + half);
    if (pool == Pool::kAverage) {
      float sum = 0;
      for (size_t n = first; n <= last; ++n) sum += in[n];
      out[i] = sum / static_cast<float>(kernel);
    } else {
      float largest = in[first];
      for (size_t n = first + 1; n <= last; ++n) largest = std::max(largest, in[n]);
      out[i] = largest;
    }
  }
}

void look_logits(const Look& look, uint32_t j, uint32_t i, std::vector<float>* logits) {
  KVT_CHECK(look.k.heads > 0 && look.q.heads % look.k.heads == 0);
  KVT_CHECK(look.q.dim == look.k.dim);
  const uint32_t head = j / look.group(), dim = look.k.dim, rows = look.k.rows;
  const float* query = look.q.row(j, i);
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  logits->resize(size_t{rows} + look.own_k.rows);
  for (uint32_t p = 0; p < rows; ++p) {
    const bool visible = look.q_positions.empty() || look.positions.at(head, p) <= look.q_positions[i];
    (*logits)[p] = visible ? dot(query, look.k.row(head, p), dim) * scale : kHidden;
  }
  for (uint32_t p = 0; p < look.own_k.rows; ++p) {
    (*logits)[size_t{rows} + p] = p <= i ? dot(query, look.own_k.row(head, p), dim) * scale : kHidden;
  }
}

void look_softmax(const Look& look, std::vector<float>* logits) {
  softmax(*logits);
  logits->resize(look.k.rows);
  if (!look.renormalise) return;
  double sum = 0;
  for (const float p : *logits) sum += p;
  if (sum <= 0) return;
  for (float& p : *logits) p = static_cast<float>(p / sum);
}

void look_row(const Look& look, uint32_t j, uint32_t i, std::vector<float>* probabilities) {
  look_logits(look, j, i, probabilities);
  look_softmax(look, probabilities);
}

}  // namespace kvtwin::kernels
