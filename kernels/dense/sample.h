// A token drawn from a row of logits: temperature, the k likeliest, the fewest whose probabilities sum to p.
//
// Everything that is summed is an integer, so that the order of additions, and with it the machine, changes
// no token: the weight of a token is floor(2^30 e^((logit - largest) / temperature)), e^x as in exact_exp.h.
//   kept    in order of logit (that of docs/design/methods/conventions.md#selection, which has -0 below 0),
//   of equal ones the smaller index first: the
//           first top_k, and of those the shortest prefix whose weights sum to at least top_p of theirs
//   chosen  of the kept in order of index: the first at which the sum of weights exceeds
//           floor(draw * sum of all kept / 2^64)
// A token counts as -inf where its logit is NaN. If no weight is left (all -inf, or infinities) it is
// argmax_ref's. Draws are counter-based: draw({seed, request, position}) of engine/base/prng.h; equal keys,
// equal tokens.

#ifndef KVTWIN_KERNELS_DENSE_SAMPLE_H_
#define KVTWIN_KERNELS_DENSE_SAMPLE_H_

#include <cstdint>

namespace kvtwin::kernels {

struct SampleSpec {
  float inverse_temperature = 1;
  uint32_t top_k = 0;      // 0: all
  uint32_t top_p_q32 = 0;  // of 2^32; 0: all
};

// REQUIRES: 0 < count <= 2^18.
uint32_t sample_ref(const SampleSpec& spec, const float* logits, uint32_t count, uint64_t draw);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_DENSE_SAMPLE_H_
