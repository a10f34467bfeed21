// The only sources of randomness. They are integer only: floating point would tie a draw to a compiler.
//
// Prng is a stream. draw() is a pure function of a key, so that neither the order of events nor the number of
// threads can change its result: key it by (seed, session, request, field, ...).

#ifndef KVTWIN_ENGINE_BASE_PRNG_H_
#define KVTWIN_ENGINE_BASE_PRNG_H_

#include <cstdint>
#include <initializer_list>

namespace kvtwin {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection that mixes all 64 bits.
constexpr uint64_t mix64(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// A draw from a key: equal keys give equal 64 bits.
constexpr uint64_t draw(std::initializer_list<uint64_t> key) {
  uint64_t state = 0x9e3779b97f4a7c15u;
  for (const uint64_t word : key) state = mix64(state ^ word) + 0x9e3779b97f4a7c15u;
  return mix64(state);
}

class Prng {
 public:
  explicit Prng(uint64_t seed) : state_(seed) {}

  uint64_t next() { return mix64(state_ += 0x9e3779b97f4a7c15u); }
  // Uniform in [low, high], both ends included. REQUIRES: low <= high.
  uint64_t range(uint64_t low, uint64_t high);
  // True with probability numerator/denominator.
  bool chance(uint64_t numerator, uint64_t denominator) { return range(1, denominator) <= numerator; }

 private:
  uint64_t state_;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_BASE_PRNG_H_
