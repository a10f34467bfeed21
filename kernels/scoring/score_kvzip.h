// KVzip (arXiv 2505.23416, docs/design/methods/uniform.md#kvzip): scores a KV entry by the attention that the
// model pays it while repeating its own context.
//
// After the prompt, for each chunk of the context, rows that spell "repeat this" and then the chunk itself
// run once more with the cache attached; their own K and V are discarded. The score of a context KV entry is
// the largest probability that any of those rows gives it, in a softmax over the sinks, the chunk and the
// rows' own keys, not over the whole context. KV entries before the context (the system prefix) score 1.
//
// State: [L][H][N] scores, all layers before any threshold. Cost: 2 to 3 times the prefill.

#ifndef KVTWIN_KERNELS_SCORING_SCORE_KVZIP_H_
#define KVTWIN_KERNELS_SCORING_SCORE_KVZIP_H_

#include <cstdint>
#include <vector>

#include "kernels/common/score_math.h"
#include "kernels/common/view.h"

namespace kvtwin::kernels {

// One chunk of the context [begin, end). Its repeat rows are `tail` tokens of the previous chunk (none for
// the first), the instruction, and the chunk.
struct RepeatChunk {
  uint32_t begin = 0;
  uint32_t end = 0;
  uint32_t tail_begin = 0;  // [tail_begin, begin): repeated from the previous chunk
};
std::vector<RepeatChunk> repeat_chunks(uint32_t begin, uint32_t end, uint32_t chunk_tokens = 2048,
                                       uint32_t tail_tokens = 8);

// Scores one chunk in one layer. attention_scores.q: the repeat rows; .k: the rows of the sinks (`sinks` of
// them), then those of the chunk; .own_k: the repeat rows' keys. out [H][chunk rows].
void score_kvzip_chunk(const AttentionScores& attention_scores, uint32_t sinks, ScoreView out);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SCORING_SCORE_KVZIP_H_
