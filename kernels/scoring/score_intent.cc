#include "kernels/scoring/score_intent.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/base/check.h"
#include "kernels/common/score_math.h"

namespace kvtwin::kernels {
namespace {

void normalise_heads(uint32_t dim, std::span<float> heads) {
  for (size_t at = 0; at < heads.size(); at += dim) {
    const float length = norm2(&heads[at], dim);
    if (length <= 0) continue;
    for (uint32_t c = 0; c < dim; ++c) heads[at + c] /= length;
  }
}

}  // namespace

void intent_query(const HeadsView& q, std::span<float> mean_query) {
  KVT_CHECK(mean_query.size() == size_t{q.heads} * q.dim);
  std::vector<double> sum(q.dim);
  for (uint32_t j = 0; j < q.heads; ++j) {
    std::fill(sum.begin(), sum.end(), 0.0);
    for (uint32_t i = 0; i < q.rows; ++i) {
      for (uint32_t c = 0; c < q.dim; ++c) sum[c] += q.row(j, i)[c];
    }
    for (uint32_t c = 0; c < q.dim; ++c) {
      mean_query[size_t{j} * q.dim + c] = static_cast<float>(sum[c] / std::max(q.rows, 1u));
    }
  }
}

void intent_query_pre_rope(const RopePlanes& planes, const HeadsView& q,
                           std::span<const uint32_t> q_positions, uint32_t now, std::span<float> mean_query) {
  KVT_CHECK(q_positions.size() == q.rows);
  std::vector<float> plain(size_t{q.heads} * q.rows * q.dim);
  for (uint32_t j = 0; j < q.heads; ++j) {
    for (uint32_t i = 0; i < q.rows; ++i) {
      unrotate(planes, q_positions[i], q.row(j, i), plain.data() + (size_t{j} * q.rows + i) * q.dim);
    }
  }
  intent_query(packed_heads(plain, q.heads, q.rows, q.dim), mean_query);
  const PlaneMap turn = rotation_at(planes, now);
  for (uint32_t j = 0; j < q.heads; ++j) {
    float* mean = &mean_query[size_t{j} * q.dim];
    apply_planes(turn, mean, mean);
  }
}

void intent_remember(const IntentSpec& spec, uint32_t dim, std::span<const float> mean_query,
                     std::span<float> memory) {
  KVT_CHECK(mean_query.size() == memory.size() && dim > 0 && memory.size() % dim == 0);
  std::vector<float> query(mean_query.begin(), mean_query.end());
  if (spec.query_norm == QueryNorm::kUnit) normalise_heads(dim, query);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = spec.gamma * memory[i] + query[i];
  normalise_heads(dim, memory);
}

void intent_forget(uint32_t dim, std::span<const float> mean_query, std::span<float> memory) {
  KVT_CHECK(mean_query.size() == memory.size() && dim > 0 && memory.size() % dim == 0);
  std::copy(mean_query.begin(), mean_query.end(), memory.begin());
  normalise_heads(dim, memory);
}

float intent_turn_factor(float gamma, uint32_t age) {
  return static_cast<float>(std::pow(double{gamma}, double{1} * age));
}

void intent_best_of_turns(float factor, std::span<const float> of_turn, std::span<float> best) {
  KVT_CHECK(of_turn.size() == best.size());
  for (size_t p = 0; p < best.size(); ++p) {
    const float score = factor * of_turn[p];
    if (score > best[p] || std::isnan(score)) best[p] = score;
  }
}

void intent_add_layer(const IntentSpec& spec, uint32_t layers, std::span<const float> memory,
                      uint32_t query_heads, const HeadsView& k, std::span<float> out) {
  KVT_CHECK(out.size() == k.rows && memory.size() == size_t{query_heads} * k.dim);
  KVT_CHECK(layers > 0 && spec.temperature > 0 && query_heads % k.heads == 0);
  const float scale = 1.0f / (std::sqrt(static_cast<float>(k.dim)) * spec.temperature);
  const uint32_t group = query_heads / k.heads;
  std::vector<float> logits(k.rows);
  std::vector<double> sum(k.rows, 0.0);
  for (uint32_t j = 0; j < query_heads; ++j) {
    const float* direction = memory.data() + size_t{j} * k.dim;
    for (uint32_t p = 0; p < k.rows; ++p) logits[p] = dot(direction, k.row(j / group, p), k.dim) * scale;
    softmax(logits);
    for (uint32_t p = 0; p < k.rows; ++p) sum[p] += logits[p];
  }
  const double split = 1.0 / (double(layers) * query_heads);
  for (uint32_t p = 0; p < k.rows; ++p) out[p] += static_cast<float>(sum[p] * split);
}

void intent_normalise(RuleNorm norm, std::span<float> rule) {
  if (rule.empty() || norm == RuleNorm::kNone) return;
  const double count = static_cast<double>(rule.size());
  if (norm == RuleNorm::kTimesCandidates) {
    for (float& score : rule) score *= static_cast<float>(count);
    return;
  }
  double sum = 0, squares = 0;
  for (const float score : rule) sum += score;
  const double mean = sum / count;
  for (const float score : rule) squares += (score - mean) * (score - mean);
  const double deviation = std::sqrt(squares / count);
  for (float& score : rule) score = deviation > 0 ? static_cast<float>((score - mean) / deviation) : 0.0f;
}

}  // namespace kvtwin::kernels
