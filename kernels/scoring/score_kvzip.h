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

#include "kernels/common/score_math.h"
#include "kernels/common/view.h"

namespace kvtwin::kernels {

// Scores one chunk in one layer. attention_scores.q: the repeat rows; .k: the rows of the sinks (`sinks` of
// them), then those of the chunk; .own_k: the repeat rows' keys. out [H][chunk rows].
void score_kvzip_chunk(const AttentionScores& attention_scores, uint32_t sinks, ScoreView out);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SCORING_SCORE_KVZIP_H_
