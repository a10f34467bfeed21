#include "tests/unit/cpu_engine/dense_forward.h"

#include <cmath>

#include "models/catalog/rope.h"

namespace kvtwin::testing {
namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

Row values(const TensorView& tensor) {
  const std::vector<float> floats = read_floats(tensor);
  return {floats.begin(), floats.end()};
}

Row times(const TensorView& weight, const TensorView& bias, const Row& x) {
  const Row w = values(weight);
  Row y = bias.present() ? values(bias) : Row(w.size() / x.size());
  for (size_t n = 0; n < y.size(); ++n) {
    for (size_t k = 0; k < x.size(); ++k) y[n] += w[n * x.size() + k] * x[k];
  }
  return y;
}

// Normalises each part of `width` separately.
Row normed(const Row& x, const TensorView& weight, size_t width, double eps) {
  const Row w = values(weight);
  Row y(x.size());
  for (size_t first = 0; first < x.size(); first += width) {
    double squares = 0;
    for (size_t i = 0; i < width; ++i) squares += x[first + i] * x[first + i];
    for (size_t i = 0; i < width; ++i)
      y[first + i] = x[first + i] / std::sqrt(squares / static_cast<double>(width) + eps) * w[i];
  }
  return y;
}

void rotate(const RopeFrequencies& rope, size_t position, size_t dim, Row* x) {
  const size_t half = dim / 2;
  for (size_t first = 0; first < x->size(); first += dim) {
    for (size_t i = 0; i < half; ++i) {
      // The angle is fp32 by definition (rope_append.h).
      const auto angle = static_cast<double>(static_cast<float>(position) * rope.inverse[i]);
      const double c = static_cast<double>(rope.scale) * std::cos(angle);
      const double s = static_cast<double>(rope.scale) * std::sin(angle);
      const double a = (*x)[first + i], b = (*x)[first + i + half];
      (*x)[first + i] = a * c - b * s;
      (*x)[first + i + half] = b * c + a * s;
    }
  }
}

// Token t attends to tokens 0 to t.
Row attended(const LlmSpec& m, const Row& q, const Rows& k, const Rows& v, size_t t) {
  const size_t dim = m.head_dim, group = m.query_heads / m.kv_heads;
  Row out(q.size());
  for (size_t j = 0; j < m.query_heads; ++j) {
    const size_t h = j / group * dim;
    Row p(t + 1);
    double sum = 0;
    for (size_t u = 0; u <= t; ++u) {
      double score = 0;
      for (size_t i = 0; i < dim; ++i) score += q[j * dim + i] * k[u][h + i];
      sum += p[u] = std::exp(score / std::sqrt(static_cast<double>(dim)));
    }
    for (size_t u = 0; u <= t; ++u) {
      for (size_t i = 0; i < dim; ++i) out[j * dim + i] += p[u] / sum * v[u][h + i];
    }
  }
  return out;
}

void add(const Row& from, Row* to) {
  for (size_t i = 0; i < to->size(); ++i) (*to)[i] += from[i];
}

void layer(const LlmSpec& m, const LayerWeights& w, const RopeFrequencies& rope, Rows* x, DenseRows* rows) {
  Rows q, k, v;
  for (size_t t = 0; t < x->size(); ++t) {
    const Row in = normed((*x)[t], w.attention_norm, m.hidden, m.norm_eps);
    q.push_back(times(w.q, w.q_bias, in));
    k.push_back(times(w.k, w.k_bias, in));
    v.push_back(times(w.v, w.v_bias, in));
    if (m.qk_norm) {
      q[t] = normed(q[t], w.q_norm, m.head_dim, m.norm_eps);
      k[t] = normed(k[t], w.k_norm, m.head_dim, m.norm_eps);
    }
    rotate(rope, t, m.head_dim, &q[t]);
    rotate(rope, t, m.head_dim, &k[t]);
    add(times(w.o, w.o_bias, attended(m, q[t], k, v, t)), &(*x)[t]);
    const Row mid = normed((*x)[t], w.mlp_norm, m.hidden, m.norm_eps);
    Row gate = times(w.gate, w.gate_bias, mid);
    const Row up = times(w.up, w.up_bias, mid);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    add(times(w.down, w.down_bias, gate), &(*x)[t]);
  }
  if (rows == nullptr) return;
  rows->q.push_back(q);
  rows->k.push_back(k);
  rows->v.push_back(v);
}

}  // namespace

std::vector<double> dense_logits(const ModelWeights& weights, const std::vector<uint32_t>& tokens,
                                 DenseRows* rows) {
  const LlmSpec& m = weights.llm();
  const RopeFrequencies rope = rope_frequencies(m);
  const Row table = values(weights.embedding());
  Rows x;
  for (const uint32_t token : tokens) {
    const auto first = table.begin() + static_cast<ptrdiff_t>(token) * m.hidden;
    x.emplace_back(first, first + m.hidden);
  }
  for (uint32_t i = 0; i < m.layers; ++i) layer(m, weights.layer(i), rope, &x, rows);
  std::vector<double> logits;
  for (const Row& row : x) {
    const Row out = times(weights.lm_head(), {}, normed(row, weights.final_norm(), m.hidden, m.norm_eps));
    logits.insert(logits.end(), out.begin(), out.end());
  }
  return logits;
}

}  // namespace kvtwin::testing
