#include "kernels/scoring/score_gate.h"

#include <doctest/doctest.h>

#include <set>

#include "kernels/scoring/gate_weights.h"
#include "tests/unit/kernels/shapes.h"

using namespace kvtwin;
using namespace kvtwin::kernels;
using namespace kvtwin::testing;

namespace {

constexpr uint32_t kWidth = FastKvzipGate::kWidth;

struct Weights {
  Tensor wq, bq, q_norm, wk, k_norm, k_base, bias;
  uint32_t heads, group, hidden;

  Weights(Prng* prng, uint32_t h, uint32_t g, uint32_t d)
      : wq(random_tensor(prng, 1, h * g * kWidth, d)),
        bq(random_tensor(prng, 1, 1, h * g * kWidth)),
        q_norm(random_tensor(prng, 1, 1, kWidth, 2.0f)),
        wk(random_tensor(prng, 1, h * kWidth, d)),
        k_norm(random_tensor(prng, 1, 1, kWidth, 2.0f)),
        k_base(random_tensor(prng, h, kWidth, kWidth)),
        bias(random_tensor(prng, 1, h, g)),
        heads(h),
        group(g),
        hidden(d) {}
  FastKvzipGate gate() const {
    return {heads,         group,     hidden,        wq.values,     bq.values,
            q_norm.values, wk.values, k_norm.values, k_base.values, bias.values};
  }
};

std::vector<double> normed(std::vector<double> x, const std::vector<float>& scale) {
  double squares = 0;
  for (const double value : x) squares += value * value / double(x.size());
  for (size_t c = 0; c < x.size(); ++c) x[c] *= double{scale[c]} / std::sqrt(squares + 1e-6);
  return x;
}

double gate_of(const Weights& w, const float* x, uint32_t h) {
  std::vector<double> k(kWidth);
  for (uint32_t c = 0; c < kWidth; ++c) k[c] = product(w.wk.at(0, h * kWidth + c), x, w.hidden);
  k = normed(k, w.k_norm.values);
  double out = 0;
  for (uint32_t g = 0; g < w.group; ++g) {
    std::vector<double> q(kWidth);
    for (uint32_t c = 0; c < kWidth; ++c) {
      const uint32_t row = (h * w.group + g) * kWidth + c;
      q[c] = product(w.wq.at(0, row), x, w.hidden) + w.bq.values[row];
    }
    q = normed(q, w.q_norm.values);
    double z = w.bias.at(0, h)[g], others = 0;
    for (uint32_t c = 0; c < kWidth; ++c) z += k[c] * q[c] / 4;
    for (uint32_t t = 0; t < kWidth; ++t) {
      double z0 = 0;
      for (uint32_t c = 0; c < kWidth; ++c) z0 += w.k_base.at(h, t)[c] * q[c] / 4;
      others += std::exp(z0 - z);
    }
    out += 1.0 / (1.0 + others) / w.group;
  }
  return out;
}

}  // namespace

TEST_CASE("FastKVzip: the gate agrees with its formula, and does not depend on other tokens") {
  Prng prng(51);
  for (const Shape& shape : edge_shapes()) {
    const uint32_t hidden = 24;
    const Weights w(&prng, shape.heads, shape.group, hidden);
    const Tensor x = random_tensor(&prng, 1, shape.tokens, hidden, 2.0f);
    std::vector<float> out(size_t{shape.heads} * shape.tokens);
    score_fastkvzip(w.gate(), x.view(), packed_scores(out, shape.heads, shape.tokens));
    for (uint32_t h = 0; h < shape.heads; ++h) {
      for (uint32_t i = 0; i < shape.tokens; ++i) {
        CHECK(off_by(out[h * shape.tokens + i], gate_of(w, x.at(0, i), h)) < 1e-4);
      }
    }
    // Two chunks give the same bits.
    const uint32_t cut = shape.tokens / 2;
    HeadsView tail = x.view();
    tail.data += size_t{cut} * hidden;
    tail.rows -= cut;
    std::vector<float> part(size_t{shape.heads} * tail.rows);
    score_fastkvzip(w.gate(), tail, packed_scores(part, shape.heads, tail.rows));
    for (uint32_t h = 0; h < shape.heads; ++h) {
      for (uint32_t i = 0; i < tail.rows; ++i) {
        CHECK(part[h * tail.rows + i] == out[h * shape.tokens + cut + i]);
      }
    }
  }
}

TEST_CASE("gates: seeded weights are equal for equal seeds, and rank KV entries apart") {
  Prng prng(53);
  const Tensor x = random_tensor(&prng, 1, 50, 24, 2.0f);
  const FastKvzipWeights w = seeded_fastkvzip(2, 4, 24, 5);
  std::vector<float> first(100), second(100), other(100);
  score_fastkvzip(w.gate(), x.view(), packed_scores(first, 2, 50));
  score_fastkvzip(seeded_fastkvzip(2, 4, 24, 5).gate(), x.view(), packed_scores(second, 2, 50));
  score_fastkvzip(seeded_fastkvzip(2, 4, 24, 6).gate(), x.view(), packed_scores(other, 2, 50));
  CHECK(first == second);
  CHECK(first != other);
  CHECK(std::set<float>(first.begin(), first.end()).size() > 90);
  CHECK(std::all_of(first.begin(), first.end(), [](float s) { return s > 0.0f && s < 1.0f; }));

  trimkv_log_beta(seeded_trimkv(2, 24, 16, 5).gate(), x.view(), packed_scores(first, 2, 50));
  CHECK(std::set<float>(first.begin(), first.end()).size() > 90);
  CHECK(std::all_of(first.begin(), first.end(), [](float s) { return s < 0.0f && s > -0.01f; }));

  const std::vector<float> soft = seeded_soft_tokens(32, 64, 1);
  CHECK(soft.size() == 32 * 64);
  double mean = 0;
  for (const float value : soft) mean += value / 2048.0;
  CHECK(std::fabs(mean) < 0.05);
}

TEST_CASE("TrimKV: log beta is a log-sigmoid of a two-layer gate, near 0 when the bias is large") {
  Prng prng(52);
  const uint32_t hidden = 20, width = 9, heads = 3, tokens = 11;
  const Tensor w1 = random_tensor(&prng, 1, width, hidden), b1 = random_tensor(&prng, 1, 1, width);
  const Tensor w2 = random_tensor(&prng, 1, heads, width), x = random_tensor(&prng, 1, tokens, hidden, 2.0f);
  for (const float bias : {0.0f, 40.0f, -40.0f}) {
    const std::vector<float> b2(heads, bias);
    for (const GateActivation act : {GateActivation::kSilu, GateActivation::kRelu, GateActivation::kGelu}) {
      const TrimKvGate gate{heads, hidden, width, act, w1.values, b1.values, w2.values, b2};
      std::vector<float> out(size_t{heads} * tokens);
      trimkv_log_beta(gate, x.view(), packed_scores(out, heads, tokens));
      for (uint32_t h = 0; h < heads; ++h) {
        for (uint32_t i = 0; i < tokens; ++i) {
          double logit = bias;
          for (uint32_t c = 0; c < width; ++c) {
            const double in = product(w1.at(0, c), x.at(0, i), hidden) + b1.values[c];
            const double active = act == GateActivation::kRelu   ? std::max(in, 0.0)
                                  : act == GateActivation::kSilu ? in / (1.0 + std::exp(-in))
                                                                 : in * 0.5 * std::erfc(-in / std::sqrt(2.0));
            logit += double{w2.at(0, h)[c]} * active;
          }
          const double expected = -std::log1p(std::exp(-logit));
          CHECK(std::fabs(out[h * tokens + i] - expected) < 1e-4 * std::max(1.0, std::fabs(expected)));
          CHECK(out[h * tokens + i] <= 0.0f);
          if (bias == 40.0f) CHECK(out[h * tokens + i] > -0.01f);
        }
      }
    }
  }
}
