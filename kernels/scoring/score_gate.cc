#include "kernels/scoring/score_gate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/base/check.h"
#include "kernels/common/exact_exp.h"
#include "kernels/common/score_math.h"

namespace kvtwin::kernels {
namespace {

constexpr uint32_t kGateWidth = FastKvzipGate::kWidth;

// out = RMSNorm(w x + b) * scale over 16 values; w [16][hidden].
void normed_projection(const float* w, const float* b, std::span<const float> scale, const float* x,
                       uint32_t hidden, float eps, float* out) {
  for (uint32_t c = 0; c < kGateWidth; ++c) {
    out[c] = dot(w + size_t{c} * hidden, x, hidden) + (b == nullptr ? 0.0f : b[c]);
  }
  const float rms = 1.0f / std::sqrt(dot(out, out, kGateWidth) / kGateWidth + eps);
  for (uint32_t c = 0; c < kGateWidth; ++c) out[c] *= rms * scale[c];
}

float activate(GateActivation activation, float x) {
  switch (activation) {
    case GateActivation::kSilu:
      return x / (1.0f + exact_exp(-x));
    case GateActivation::kRelu:
      return std::max(x, 0.0f);
    case GateActivation::kGelu:
      return 0.5f * x * (1.0f + std::erf(x * 0.70710678f));
  }
  return x;
}

// log(1 / (1 + e^-x)) without overflow.
float log_sigmoid(float x) { return std::min(x, 0.0f) - std::log1p(exact_exp(-std::fabs(x))); }

}  // namespace

void score_fastkvzip(const FastKvzipGate& gate, const HeadsView& x, ScoreView out) {
  KVT_CHECK(out.heads == gate.heads && out.rows == x.rows && x.dim == gate.hidden);
  KVT_CHECK(gate.wq.size() == size_t{gate.heads} * gate.group * kGateWidth * gate.hidden);
  KVT_CHECK(gate.wk.size() == size_t{gate.heads} * kGateWidth * gate.hidden);
  KVT_CHECK(gate.k_base.size() == size_t{gate.heads} * kGateWidth * kGateWidth);
  float q[kGateWidth], k[kGateWidth];
  for (uint32_t h = 0; h < gate.heads; ++h) {
    const float* base = gate.k_base.data() + size_t{h} * kGateWidth * kGateWidth;
    for (uint32_t i = 0; i < x.rows; ++i) {
      normed_projection(gate.wk.data() + size_t{h} * kGateWidth * gate.hidden, nullptr, gate.k_norm,
                        x.row(0, i), gate.hidden, gate.norm_eps, k);
      float sum = 0;
      for (uint32_t g = 0; g < gate.group; ++g) {
        const uint32_t j = h * gate.group + g;
        normed_projection(gate.wq.data() + size_t{j} * kGateWidth * gate.hidden,
                          gate.bq.data() + size_t{j} * kGateWidth, gate.q_norm, x.row(0, i), gate.hidden,
                          gate.norm_eps, q);
        const float z = dot(k, q, kGateWidth) / 4.0f + gate.bias[j];
        float others = 0;
        for (uint32_t t = 0; t < kGateWidth; ++t) {
          others += exact_exp(dot(base + size_t{t} * kGateWidth, q, kGateWidth) / 4.0f - z);
        }
        sum += 1.0f / (1.0f + others);
      }
      out.row(h)[i] = sum / static_cast<float>(gate.group);
    }
  }
}

void trimkv_log_beta(const TrimKvGate& gate, const HeadsView& x, ScoreView out) {
  KVT_CHECK(out.heads == gate.heads && out.rows == x.rows && x.dim == gate.hidden);
  KVT_CHECK(gate.w1.size() == size_t{gate.width} * gate.hidden);
  KVT_CHECK(gate.w2.size() == size_t{gate.heads} * gate.width);
  std::vector<float> inner(gate.width);
  for (uint32_t i = 0; i < x.rows; ++i) {
    for (uint32_t c = 0; c < gate.width; ++c) {
      const float sum = dot(gate.w1.data() + size_t{c} * gate.hidden, x.row(0, i), gate.hidden) + gate.b1[c];
      inner[c] = activate(gate.activation, sum);
    }
    for (uint32_t h = 0; h < gate.heads; ++h) {
      const float logit = dot(gate.w2.data() + size_t{h} * gate.width, inner.data(), gate.width) + gate.b2[h];
      out.row(h)[i] = log_sigmoid(logit);
    }
  }
}

void score_trimkv(const TrimKvSpec& spec, ScoreView log_beta, const HeadsView& k, Positions positions,
                  uint32_t tokens_seen, ScoreView out) {
  KVT_CHECK(out.heads == log_beta.heads && out.rows == log_beta.rows);
  KVT_CHECK(!spec.key_norm || (k.heads == out.heads && k.rows == out.rows));
  const uint32_t first = out.rows - std::min(spec.window, out.rows);
  const int64_t now = int64_t{tokens_seen} + 1;
  for (uint32_t h = 0; h < out.heads; ++h) {
    for (uint32_t i = 0; i < out.rows; ++i) {
      float score = static_cast<float>(now - int64_t{positions.at(h, i)}) * log_beta.row(h)[i];
      if (spec.key_norm) score += std::log(std::max(norm2(k.row(h, i), k.dim), 1e-12f));
      out.row(h)[i] = i >= first ? kMustStay : score;
    }
  }
}

}  // namespace kvtwin::kernels
