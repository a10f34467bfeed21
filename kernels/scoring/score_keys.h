// Scores from keys alone: Knorm and KeyDiff (docs/design/methods/uniform.md#tova-knorm-keydiff). No queries
// and no state: prefix-closed for a fixed chunking. k [H][T][d], post-RoPE (a rotation changes no norm;
// KeyDiff's anchor is over rotated keys). O(H * T * d).

#ifndef KVTWIN_KERNELS_SCORING_SCORE_KEYS_H_
#define KVTWIN_KERNELS_SCORING_SCORE_KEYS_H_

#include "kernels/common/view.h"

namespace kvtwin::kernels {

// Knorm (arXiv 2406.11430): minus the norm of the key.
void score_knorm(const HeadsView& k, ScoreView out);

// KeyDiff (arXiv 2504.15364): minus the cosine between a key and the mean of all unit keys of its head. `k`
// is the chunk. A zero key counts as length 1e-12; cosines divide by at least 1e-8.
void score_keydiff(const HeadsView& k, ScoreView out);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SCORING_SCORE_KEYS_H_
