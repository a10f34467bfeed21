#include "kernels/scoring/score_window.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"

namespace kvtwin::kernels {
namespace {

// Reduces `values` of group `head` ([G][n], row g at g * n) to out[n].
void reduce_group(Reduce reduce, uint32_t group, const std::vector<float>& values, std::span<float> out) {
  const size_t n = out.size();
  for (size_t p = 0; p < n; ++p) {
    float joined = values[p];
    for (uint32_t g = 1; g < group; ++g) {
      const float next = values[g * n + p];
      joined = reduce == Reduce::kMax ? std::max(joined, next) : joined + next;
    }
    out[p] = reduce == Reduce::kMean ? joined / static_cast<float>(group) : joined;
  }
}

class Mean {
 public:
  Mean(const WindowSpec& spec, const AttentionScores& attention_scores)
      : spec_(spec), attention_scores_(attention_scores) {}

  // Adds `weight` times one row of probabilities to output row `lane` (a query head of the group).
  void start(uint32_t lanes) { sums_.assign(size_t{lanes} * attention_scores_.k.rows, 0.0); }
  void add(uint32_t lane, const std::vector<float>& row, double weight) {
    double* sum = sums_.data() + size_t{lane} * attention_scores_.k.rows;
    for (uint32_t p = 0; p < attention_scores_.k.rows; ++p) sum[p] += weight * row[p];
  }
  // The first n columns of the means over the rows, [lanes][n].
  std::vector<float> take(uint32_t lanes, uint32_t n) const {
    std::vector<float> out(size_t{lanes} * n);
    for (uint32_t lane = 0; lane < lanes; ++lane) {
      for (uint32_t p = 0; p < n; ++p) {
        out[size_t{lane} * n + p] =
            static_cast<float>(sums_[size_t{lane} * attention_scores_.k.rows + p] / attention_scores_.q.rows);
      }
    }
    return out;
  }
  // FINCH: the number of keys that row i of KV head `head` sees.
  double weight(uint32_t head, uint32_t i) const {
    if (!spec_.weigh_visible) return 1.0;
    uint32_t visible = 0;
    for (uint32_t p = 0; p < attention_scores_.k.rows; ++p) {
      visible += attention_scores_.q_positions.empty() ||
                 attention_scores_.positions.at(head, p) <= attention_scores_.q_positions[i];
    }
    return visible;
  }

 private:
  const WindowSpec& spec_;
  const AttentionScores& attention_scores_;
  std::vector<double> sums_;
};

// u[lanes][n] of one KV head: one output row per query head, or one in all if logits are reduced first.
std::vector<float> head_means(const WindowSpec& spec, const AttentionScores& attention_scores, uint32_t head,
                              uint32_t n) {
  const uint32_t group = attention_scores.group();
  Mean mean(spec, attention_scores);
  std::vector<float> row, other;
  if (spec.order != PoolOrder::kReduceLogitsFirst) {
    mean.start(group);
    for (uint32_t g = 0; g < group; ++g) {
      for (uint32_t i = 0; i < attention_scores.q.rows; ++i) {
        attention_score_row(attention_scores, head * group + g, i, &row);
        mean.add(g, row, mean.weight(head, i));
      }
    }
    return mean.take(group, n);
  }
  mean.start(1);
  for (uint32_t i = 0; i < attention_scores.q.rows; ++i) {
    attention_score_logits(attention_scores, head * group, i, &row);
    for (uint32_t g = 1; g < group; ++g) {
      attention_score_logits(attention_scores, head * group + g, i, &other);
      for (size_t p = 0; p < row.size(); ++p) row[p] = std::max(row[p], other[p]);
    }
    attention_score_softmax(attention_scores, &row);
    mean.add(0, row, mean.weight(head, i));
  }
  return mean.take(1, n);
}

// Rows of `head` before the window.
uint32_t rows_before_window(const WindowSpec& spec, const AttentionScores& attention_scores, uint32_t head) {
  if (!spec.keep_window || attention_scores.q_positions.empty()) return attention_scores.k.rows;
  const uint32_t first =
      *std::min_element(attention_scores.q_positions.begin(), attention_scores.q_positions.end());
  uint32_t n = 0;
  while (n < attention_scores.k.rows && attention_scores.positions.at(head, n) < first) ++n;
  return n;
}

}  // namespace

WindowSpec window_spec(WindowCodeBase code_base) {
  using enum WindowCodeBase;
  switch (code_base) {
    case kKvpress:
      return {.window = 64, .kernel = 5, .pool = Pool::kAverage, .order = PoolOrder::kPoolThenReduce};
    case kKvCacheFactory:
      return {.window = 64, .kernel = 5, .pool = Pool::kAverage};
    case kTangram:
      return {.reduce = Reduce::kMax, .order = PoolOrder::kReduceLogitsFirst, .causal = false};
    case kJudgeQ:
      return {.keep_window = false};
    case kH2oWindow:
      return {.kernel = 1, .pool = Pool::kNone};
    case kFinch:
      return {.kernel = 1, .pool = Pool::kNone, .weigh_visible = true};
    case kAdaKv:
    case kIntentKv:
      return {};  // the defaults: 32 rows, reduced by the mean, then pooled by the maximum over 7
  }
  return {};
}

void score_window(const WindowSpec& spec, const AttentionScores& attention_scores, ScoreView out) {
  KVT_CHECK(out.heads == attention_scores.k.heads && out.rows == attention_scores.k.rows);
  AttentionScores seen = attention_scores;
  if (!spec.causal) seen.q_positions = {};
  const uint32_t lanes = spec.order == PoolOrder::kReduceLogitsFirst ? 1 : attention_scores.group();
  std::vector<float> pooled;
  for (uint32_t head = 0; head < attention_scores.k.heads; ++head) {
    const uint32_t n = rows_before_window(spec, attention_scores, head);
    const std::span<float> scores = out.row(head);
    std::fill(scores.begin() + n, scores.end(), kMustStay);
    if (n == 0) continue;
    if (attention_scores.q.rows == 0) {
      std::fill(scores.begin(), scores.begin() + n, 0.0f);
      continue;
    }
    std::vector<float> means = head_means(spec, seen, head, n);
    pooled.resize(n);
    if (spec.order == PoolOrder::kPoolThenReduce) {
      for (uint32_t lane = 0; lane < lanes; ++lane) {
        const std::span<float> u(means.data() + size_t{lane} * n, n);
        pool_rows(spec.pool, spec.kernel, u, pooled);
        std::copy(pooled.begin(), pooled.end(), u.begin());
      }
      reduce_group(spec.reduce, lanes, means, scores.first(n));
    } else {
      reduce_group(lanes == 1 ? Reduce::kSum : spec.reduce, lanes, means, pooled);
      pool_rows(spec.pool, spec.kernel, pooled, scores.first(n));
    }
  }
}

void score_tova(const AttentionScores& attention_scores, ScoreView out) {
  KVT_CHECK(out.heads == attention_scores.k.heads && out.rows == attention_scores.k.rows);
  const uint32_t rows = attention_scores.k.rows;
  std::vector<double> sum(rows, 0.0);
  std::vector<float> row;
  if (attention_scores.q.rows > 0) {
    for (uint32_t j = 0; j < attention_scores.q.heads; ++j) {
      attention_score_row(attention_scores, j, attention_scores.q.rows - 1, &row);
      for (uint32_t p = 0; p < rows; ++p) sum[p] += row[p];
    }
  }
  for (uint32_t head = 0; head < out.heads; ++head) {
    for (uint32_t p = 0; p < rows; ++p) {
      const bool last = !attention_scores.q_positions.empty() &&
                        attention_scores.positions.at(head, p) >= attention_scores.q_positions.back();
      out.row(head)[p] = last ? kMustStay : static_cast<float>(sum[p] / attention_scores.q.heads);
    }
  }
}

}  // namespace kvtwin::kernels
