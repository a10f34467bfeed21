// KVzip (arXiv 2505.23416, docs/design/methods/uniform.md#kvzip): what must the model attend to in order to
// repeat its own context?
//
// After the prompt, for each chunk of the context, rows that spell "repeat this" and then the chunk itself
// run once more with the cache attached and their own K, V thrown away. A context KV entry is worth the
// largest probability that any of those rows gives it, in a softmax over the sinks, the chunk and the rows'
// own keys only; not over the whole context. KV entries before the context (the system prefix) score 1.
//
// State: [L][H][N] scores, all layers before any threshold. Cost: 2 to 3 times the prefill.

#ifndef KVTWIN_KERNELS_SCORING_SCORE_KVZIP_H_
#define KVTWIN_KERNELS_SCORING_SCORE_KVZIP_H_

#include <cstdint>
#include <vector>

#include "kernels/common/score_math.h"
#include "kernels/common/view.h"

namespace kvtwin::kernels {

// The context [begin, end) cut into chunks; the repeat rows of a chunk are `tail` tokens of the chunk before
// it (none for the first), the instruction, and the chunk.
struct RepeatChunk {
  uint32_t begin = 0;
  uint32_t end = 0;
  uint32_t tail_begin = 0;  // [tail_begin, begin): repeated from the chunk before
};
std::vector<RepeatChunk> repeat_chunks(uint32_t begin, uint32_t end, uint32_t chunk_tokens = 2048,
                                       uint32_t tail_tokens = 8);

// One chunk in one layer. look.q: the repeat rows; look.k: the sink rows, then the chunk's (`sinks` of the
// former); look.own_k: the repeat rows' keys. out [H][chunk rows].
void score_kvzip_chunk(const AttentionScores& attention_scores, uint32_t sinks, ScoreView out);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SCORING_SCORE_KVZIP_H_
