#include "kernels/scoring/score_kvzip.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin::kernels {

std::vector<RepeatChunk> repeat_chunks(uint32_t begin, uint32_t end, uint32_t chunk_tokens,
                                       uint32_t tail_tokens) {
  KVT_CHECK(chunk_tokens > 0);
  std::vector<RepeatChunk> out;
  for (uint32_t at = begin; at < end;) {
    const uint32_t next = end - at > chunk_tokens ? at + chunk_tokens : end;
    const uint32_t tail = at == begin ? 0 : std::min(tail_tokens, at - begin);
    out.push_back({at, next, at - tail});
    at = next;
  }
  return out;
}

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
