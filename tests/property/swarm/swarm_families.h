// The settings of one family of seeds (swarm.h), from which those of other families are made.

#ifndef KVTWIN_TESTS_PROPERTY_SWARM_SWARM_FAMILIES_H_
#define KVTWIN_TESTS_PROPERTY_SWARM_SWARM_FAMILIES_H_

#include <cstddef>
#include <cstdint>

#include "engine/base/prng.h"
#include "tests/property/swarm/swarm_settings.h"

namespace kvtwin::testing {

template <typename T, size_t N>
T one_of(const T (&choices)[N], Prng* prng) {
  return choices[prng->range(0, N - 1)];
}

inline uint32_t number(Prng* prng, uint64_t low, uint64_t high) {
  return static_cast<uint32_t>(prng->range(low, high));
}

// REQUIRES: seed < kEvictionSeeds.
Setting draw_family(uint64_t seed);

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_PROPERTY_SWARM_SWARM_FAMILIES_H_
