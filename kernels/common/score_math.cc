#include "kernels/common/score_math.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "kernels/common/exact_exp.h"

namespace kvtwin::kernels {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

// out[p] = q . row p * scale. Rows are `stride` apart; `list`, if given, has their indices.
struct LogitRows {
  template <uint32_t kWidth>
  [[gnu::always_inline]] static void run(const float* q, const float* rows, size_t stride,
                                         const uint32_t* list, uint32_t count, uint32_t dim, float scale,
                                         float* out) {
    for (uint32_t p = 0; p < count; ++p) {
      out[p] = dot<kWidth>(q, rows + (list == nullptr ? p : list[p]) * stride, dim) * scale;
    }
  }
};

// The first `count` rows of a head of `view`.
void head_logits(const float* q, const HeadsView& view, uint32_t head, uint32_t count, float scale,
                 float* out) {
  const uint32_t* list = view.list.empty() ? nullptr : view.list.data();
  if (view.list.size() > view.rows) list += size_t{head} * view.rows;
  widest<LogitRows>(q, view.data + head * view.head_stride, view.row_stride, list, count, view.dim, scale,
                    out);
}

// x <- exp(x - largest); -inf to 0, NaN stays.
KVTWIN_WIDE void exponentials(float largest, size_t count, float* x) {
  for (size_t i = 0; i < count; ++i) {
    const float e = exact_exp(x[i] - largest);
    x[i] = x[i] == kMasked ? 0.0f : x[i] != x[i] ? x[i] : e;
  }
}

KVTWIN_WIDE void scale_all(float by, size_t count, float* x) {
  for (size_t i = 0; i < count; ++i) x[i] *= by;
}

// Positions ascend, so the rows that a query sees are a prefix.
uint32_t rows_visible(const AttentionScores& attention_scores, uint32_t head, uint32_t i) {
  if (attention_scores.q_positions.empty()) return attention_scores.k.rows;
  uint32_t low = 0, high = attention_scores.k.rows;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (attention_scores.positions.at(head, middle) <= attention_scores.q_positions[i]) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace

float norm2(const float* a, uint32_t dim) { return std::sqrt(dot(a, a, dim)); }

void softmax(std::span<float> logits) {
  float largest = kMasked;
  for (const float logit : logits) largest = std::max(largest, logit);
  if (largest == kMasked) return std::fill(logits.begin(), logits.end(), 0.0f);
  exponentials(largest, logits.size(), logits.data());
  double sum = 0;
  for (const float e : logits) sum += e;
  scale_all(static_cast<float>(1.0 / sum), logits.size(), logits.data());
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

void attention_score_logits(const AttentionScores& attention_scores, uint32_t j, uint32_t i,
                            std::vector<float>* logits) {
  KVT_CHECK(attention_scores.k.heads > 0 && attention_scores.q.heads % attention_scores.k.heads == 0);
  KVT_CHECK(attention_scores.q.dim == attention_scores.k.dim);
  const uint32_t head = j / attention_scores.group(), dim = attention_scores.k.dim,
                 rows = attention_scores.k.rows;
  const float* query = attention_scores.q.row(j, i);
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  logits->resize(size_t{rows} + attention_scores.own_k.rows);
  std::fill(logits->begin(), logits->end(), kMasked);
  head_logits(query, attention_scores.k, head, rows_visible(attention_scores, head, i), scale,
              logits->data());
  if (attention_scores.own_k.rows > 0) {
    const uint32_t own = std::min(i + 1, attention_scores.own_k.rows);
    head_logits(query, attention_scores.own_k, head, own, scale, logits->data() + rows);
  }
}

void attention_score_softmax(const AttentionScores& attention_scores, std::vector<float>* logits) {
  softmax(*logits);
  logits->resize(attention_scores.k.rows);
  if (!attention_scores.renormalise) return;
  double sum = 0;
  for (const float p : *logits) sum += p;
  if (sum <= 0) return;
  for (float& p : *logits) p = static_cast<float>(p / sum);
}

void attention_score_row(const AttentionScores& attention_scores, uint32_t j, uint32_t i,
                         std::vector<float>* probabilities) {
  attention_score_logits(attention_scores, j, i, probabilities);
  attention_score_softmax(attention_scores, probabilities);
}

}  // namespace kvtwin::kernels
