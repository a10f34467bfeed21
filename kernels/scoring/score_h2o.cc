#include "kernels/scoring/score_h2o.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin::kernels {

void h2o_accumulate(const AttentionScores& attention_scores, ScoreView accumulators) {
  KVT_CHECK(accumulators.heads == attention_scores.k.heads && accumulators.rows == attention_scores.k.rows);
  const uint32_t group = attention_scores.group(), rows = attention_scores.k.rows;
  std::vector<float> row;
  std::vector<double> sum(rows);
  for (uint32_t head = 0; head < attention_scores.k.heads; ++head) {
    std::fill(sum.begin(), sum.end(), 0.0);
    for (uint32_t g = 0; g < group; ++g) {
      for (uint32_t i = 0; i < attention_scores.q.rows; ++i) {
        attention_score_row(attention_scores, head * group + g, i, &row);
        for (uint32_t p = 0; p < rows; ++p) sum[p] += row[p];
      }
    }
    const std::span<float> into = accumulators.row(head);
    for (uint32_t p = 0; p < rows; ++p) into[p] += static_cast<float>(sum[p] / group);
  }
}

void finish_observed(ObservedForm form, Positions positions, uint32_t queries_end, uint32_t window,
                     ScoreView scores) {
  for (uint32_t head = 0; head < scores.heads; ++head) {
    const std::span<float> row = scores.row(head);
    const uint32_t first = scores.rows - std::min(window, scores.rows);
    for (uint32_t p = 0; p < scores.rows; ++p) {
      const uint32_t position = positions.at(head, p);
      if (p >= first) {
        row[p] = kMustStay;
      } else if (form == ObservedForm::kPerRow && position < queries_end) {
        row[p] /= static_cast<float>(queries_end - position);
      }
    }
  }
}

void score_observed(ObservedForm form, const AttentionScores& attention_scores, uint32_t window,
                    ScoreView out) {
  for (uint32_t head = 0; head < out.heads; ++head) {
    std::fill(out.row(head).begin(), out.row(head).end(), 0.0f);
  }
  h2o_accumulate(attention_scores, out);
  uint32_t end = attention_scores.k.rows;
  if (!attention_scores.q_positions.empty()) {
    end = *std::max_element(attention_scores.q_positions.begin(), attention_scores.q_positions.end()) + 1;
  }
  finish_observed(form, attention_scores.positions, end, window, out);
}

}  // namespace kvtwin::kernels
