#include "tests/swarm/swarm.h"

#include <doctest/doctest.h>

using namespace kvtwin::testing;

TEST_CASE("swarm: whatever the limits, every call is answered, and folding changes nothing") {
  Probes probes = all_probes(200);
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    const SwarmResult result = run_swarm(seed, &probes);
    for (const std::string& difference : result.differences) CHECK_MESSAGE(false, difference);
  }
}

TEST_CASE("X-3 X-4 X-6 swarm: policy sets that drop cells") {
  Probes probes = all_probes(kRetentionSeeds);
  for (uint64_t seed = kRetentionSeeds; seed < kRetentionSeeds + 300; ++seed) {
    CAPTURE(seed);
    const SwarmResult result = run_swarm(seed, &probes);
    for (const std::string& difference : result.differences) CHECK_MESSAGE(false, difference);
  }
}

TEST_CASE("Q-3 Q-4 Q-6 X-3 X-4 swarm: cells of two formats in two pools") {
  Probes probes = all_probes(kFormatSeeds);
  for (uint64_t seed = kFormatSeeds; seed < kFormatSeeds + 300; ++seed) {
    CAPTURE(seed);
    const SwarmResult result = run_swarm(seed, &probes);
    for (const std::string& difference : result.differences) CHECK_MESSAGE(false, difference);
  }
}

TEST_CASE("X-3 X-4 X-5 swarm: calls that go on from compressed prefixes") {
  Probes probes = all_probes(kSnapshotSeeds);
  for (uint64_t seed = kSnapshotSeeds; seed < kSnapshotSeeds + 300; ++seed) {
    CAPTURE(seed);
    const SwarmResult result = run_swarm(seed, &probes);
    for (const std::string& difference : result.differences) CHECK_MESSAGE(false, difference);
  }
}
