#include "kernels/scoring/score_kvzip.h"

#include <algorithm>
#include <vector>

#include "engine/base/check.h"

namespace kvtwin::kernels {

void score_kvzip_chunk(const AttentionScores& attention_scores, uint32_t sinks, ScoreView out) {
  KVT_CHECK(sinks <= attention_scores.k.rows && out.rows == attention_scores.k.rows - sinks &&
            out.heads == attention_scores.k.heads);
  const uint32_t group = attention_scores.group();
  std::vector<float> row;
  for (uint32_t head = 0; head < attention_scores.k.heads; ++head) {
    const std::span<float> scores = out.row(head);
    std::fill(scores.begin(), scores.end(), 0.0f);
    for (uint32_t g = 0; g < group; ++g) {
      for (uint32_t i = 0; i < attention_scores.q.rows; ++i) {
        attention_score_row(attention_scores, head * group + g, i, &row);
        for (uint32_t p = 0; p < out.rows; ++p) scores[p] = std::max(scores[p], row[sinks + p]);
      }
    }
  }
}

}  // namespace kvtwin::kernels
