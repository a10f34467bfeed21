// Draws for the synthesisers, on integers only, so that a seed gives the same bytes on every machine.
//
// Distributions are percentile tables from real traces or papers, with geometric interpolation between their
// points (linear where a point is not positive): gaps and lengths of agents are heavy-tailed, and a straight
// line between p99 and the maximum would double their mean. Logarithms and powers are Q32 fixed point,
// correct to about 1e-8. Every draw is a pure function of (seed, session, field, n), so neither the order of
// draws nor a new field changes another draw.

#ifndef KVTWIN_TRACES_SYNTH_SYNTHESIZE_DRAWS_H_
#define KVTWIN_TRACES_SYNTH_SYNTHESIZE_DRAWS_H_

#include <cstdint>
#include <span>

#include "engine/base/prng.h"

namespace kvtwin {

// `cumulative` in 100,000 of the distribution is at most `value`. A table starts at 0 and ends at 100,000,
// and neither column decreases.
struct QuantilePoint {
  uint32_t cumulative;
  int64_t value;
};
using QuantileTable = std::span<const QuantilePoint>;

// The value at `u` / 2^64 of the distribution.
int64_t quantile(QuantileTable table, uint64_t u);

// round(2^32 * log2(x)). REQUIRES: x > 0.
uint64_t log2_q32(uint64_t x);
// 2^(exponent / 2^32), rounded down. REQUIRES: exponent < 63 * 2^32.
uint64_t exp2_q32(uint64_t exponent);
// An exponential variate of mean `mean` at `u` / 2^64. REQUIRES: 0 <= mean < 2^53.
int64_t exponential(int64_t mean, uint64_t u);

// The draws of one session.
class SessionDraws {
 public:
  SessionDraws(uint64_t seed, uint64_t session) : seed_(seed), session_(session) {}

  // Field is an enum of the caller with one value per quantity that it draws.
  template <typename Field>
  uint64_t bits(Field field, uint64_t n = 0, uint64_t k = 0) const {
    return draw({seed_, session_, static_cast<uint64_t>(field), n, k});
  }
  template <typename Field>
  int64_t pick(QuantileTable table, Field field, uint64_t n = 0, uint64_t k = 0) const {
    return quantile(table, bits(field, n, k));
  }
  // Uniform in [low, high], both ends included.
  template <typename Field>
  int64_t between(int64_t low, int64_t high, Field field, uint64_t n = 0, uint64_t k = 0) const {
    return low + static_cast<int64_t>(bits(field, n, k) % static_cast<uint64_t>(high - low + 1));
  }
  // True in `cumulative` of `of` cases.
  template <typename Field>
  bool chance(int64_t cumulative, int64_t of, Field field, uint64_t n = 0, uint64_t k = 0) const {
    return between(1, of, field, n, k) <= cumulative;
  }

 private:
  uint64_t seed_;
  uint64_t session_;
};

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_SYNTH_SYNTHESIZE_DRAWS_H_
