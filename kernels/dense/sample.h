// Samples a token from a row of logits: temperature, top-k, top-p.
//
// All sums are of integers, so neither the order of additions nor the machine changes a token. The weight of
// a token is floor(2^30 e^((logit - largest) / temperature)), with e^x as in exact_exp.h.
//   retained  tokens in descending order of logit (docs/design/methods/conventions.md#selection: -0 is below
//   0),
//             ties by the smaller index first: the first top_k, and of those the shortest prefix whose
//             weights sum to at least top_p of theirs
//   chosen    of the retained tokens in order of index: the first at which the running sum of weights exceeds
//             floor(draw * sum of all retained weights / 2^64)
// A NaN logit counts as -inf. If no weight is left (all -inf, or infinities), the token is argmax_ref's.
// Draws are counter-based: draw({seed, request, position}) of engine/base/prng.h. Equal keys give equal
// tokens.

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
