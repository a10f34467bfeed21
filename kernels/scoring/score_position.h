// Scores from positions only: StreamingLLM, and random (the lower limit that any scorer must beat).
//
// out [heads][rows]; positions are logical (docs/design/methods/uniform.md#streamingllm: in chunked prefill
// the global position, because a carried window is ranked together with the next chunk). O(1) per KV entry,
// no state, no captured tensors.

#ifndef KVTWIN_KERNELS_SCORING_SCORE_POSITION_H_
#define KVTWIN_KERNELS_SCORING_SCORE_POSITION_H_

#include <cstdint>

#include "kernels/common/view.h"

namespace kvtwin::kernels {

// score = position; the first `sink` positions must be retained. Top-k is [0, sink) and the most recent rows.
// Exact to 2^24 positions, the limit of fp32. Duo- and RazorAttention's streaming heads use it too.
void score_streaming(Positions positions, uint32_t sink, ScoreView out);

// A draw in [0, 1) from (seed, layer, head, position), 24 bits. It is independent of order and threads, and
// equal tokens of two sessions get equal scores (prefix-closed).
void score_random(uint64_t seed, uint32_t layer, uint32_t head_first, Positions positions, ScoreView out);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SCORING_SCORE_POSITION_H_
