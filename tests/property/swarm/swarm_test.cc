#include "tests/property/swarm/swarm.h"

#include <doctest/doctest.h>

using namespace kvtwin::testing;

TEST_CASE("swarm: under any limits every request is answered, and coalescing changes nothing") {
  Probes probes = all_probes(200);
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    const SwarmResult result = run_swarm(seed, &probes);
    for (const std::string& difference : result.differences) CHECK_MESSAGE(false, difference);
  }
}

TEST_CASE("X-3 X-4 X-6 swarm: policy sets that drop KV entries") {
  Probes probes = all_probes(kRetentionSeeds);
  for (uint64_t seed = kRetentionSeeds; seed < kRetentionSeeds + 300; ++seed) {
    CAPTURE(seed);
    const SwarmResult result = run_swarm(seed, &probes);
    for (const std::string& difference : result.differences) CHECK_MESSAGE(false, difference);
  }
}

TEST_CASE("Q-3 Q-4 Q-6 X-3 X-4 swarm: KV entries of two formats in mixed precision pools") {
  Probes probes = all_probes(kFormatSeeds);
  for (uint64_t seed = kFormatSeeds; seed < kFormatSeeds + 300; ++seed) {
    CAPTURE(seed);
    const SwarmResult result = run_swarm(seed, &probes);
    for (const std::string& difference : result.differences) CHECK_MESSAGE(false, difference);
  }
}

TEST_CASE("X-3 X-6 swarm: preempted requests are swapped out to the host") {
  Probes probes = all_probes(kSwapSeeds);
  for (uint64_t seed = kSwapSeeds; seed < kSwapSeeds + 300; ++seed) {
    CAPTURE(seed);
    const SwarmResult result = run_swarm(seed, &probes);
    for (const std::string& difference : result.differences) CHECK_MESSAGE(false, difference);
  }
}

TEST_CASE("X-3 X-4 X-6 swarm: preempted requests whose KV entries were dropped are swapped out") {
  Probes probes = all_probes(kRetentionSwapSeeds);
  for (uint64_t seed = kRetentionSwapSeeds; seed < kRetentionSwapSeeds + 300; ++seed) {
    CAPTURE(seed);
    const SwarmResult result = run_swarm(seed, &probes);
    for (const std::string& difference : result.differences) CHECK_MESSAGE(false, difference);
  }
}

TEST_CASE("X-3 X-4 X-5 swarm: resident requests that start with prefixes on the host") {
  Probes probes = all_probes(kResidentSeeds);
  for (uint64_t seed = kResidentSeeds; seed < kResidentSeeds + 300; ++seed) {
    CAPTURE(seed);
    const SwarmResult result = run_swarm(seed, &probes);
    for (const std::string& difference : result.differences) CHECK_MESSAGE(false, difference);
  }
}

TEST_CASE("X-3 X-4 X-6 swarm: a disk below the host tier") {
  Probes probes = all_probes(kDiskSeeds);
  for (uint64_t seed = kDiskSeeds; seed < kDiskSeeds + 400; ++seed) {
    CAPTURE(seed);
    const SwarmResult result = run_swarm(seed, &probes);
    for (const std::string& difference : result.differences) CHECK_MESSAGE(false, difference);
  }
}

TEST_CASE("X-3 X-4 X-5 swarm: requests that continue from compressed prefixes") {
  Probes probes = all_probes(kPrefixCheckpointSeeds);
  for (uint64_t seed = kPrefixCheckpointSeeds; seed < kPrefixCheckpointSeeds + 300; ++seed) {
    CAPTURE(seed);
    const SwarmResult result = run_swarm(seed, &probes);
    for (const std::string& difference : result.differences) CHECK_MESSAGE(false, difference);
  }
}

TEST_CASE("X-3 X-4 swarm: prefixes evicted by hints or by cost, with hits within the bound") {
  Probes probes = all_probes(200);
  for (uint64_t seed = kEvictionSeeds; seed < kEvictionSeeds + 400; ++seed) {
    CAPTURE(seed);
    const SwarmResult result = run_swarm(seed, &probes);
    for (const std::string& difference : result.differences) CHECK_MESSAGE(false, difference);
  }
}

// The backend checks that all tokens of a step, those of passes included, fit the budget.
TEST_CASE("X-3 X-4 swarm: passes of probe tokens precede compressions") {
  Probes probes = all_probes(kPassSeeds);
  for (uint64_t seed = kPassSeeds; seed < kPassSeeds + 600; ++seed) {
    CAPTURE(seed);
    const SwarmResult result = run_swarm(seed, &probes);
    for (const std::string& difference : result.differences) CHECK_MESSAGE(false, difference);
  }
  for (const auto& probe : probes) CHECK_MESSAGE(probe.second > 0, probe.first);
}

TEST_CASE("X-3 X-4 X-5 swarm: compressed prefixes in one queue with free pages, and full reservations") {
  Probes probes = all_probes(kCheckpointRoomSeeds);
  for (uint64_t seed = kCheckpointRoomSeeds; seed < kCheckpointRoomSeeds + 400; ++seed) {
    CAPTURE(seed);
    const SwarmResult result = run_swarm(seed, &probes);
    for (const std::string& difference : result.differences) CHECK_MESSAGE(false, difference);
  }
}

TEST_CASE("Q-3 X-3 X-6 swarm: preempted requests with KV entries of two formats are swapped out") {
  Probes probes = all_probes(kFormatSwapSeeds);
  for (uint64_t seed = kFormatSwapSeeds; seed < kFormatSwapSeeds + 400; ++seed) {
    CAPTURE(seed);
    const SwarmResult result = run_swarm(seed, &probes);
    for (const std::string& difference : result.differences) CHECK_MESSAGE(false, difference);
  }
}

TEST_CASE("X-3 X-4 X-5 swarm: compressed prefixes on a host tier") {
  Probes probes = all_probes(kCheckpointHostSeeds);
  for (uint64_t seed = kCheckpointHostSeeds; seed < kCheckpointHostSeeds + 400; ++seed) {
    CAPTURE(seed);
    const SwarmResult result = run_swarm(seed, &probes);
    for (const std::string& difference : result.differences) CHECK_MESSAGE(false, difference);
  }
}

TEST_CASE("Q-3 X-3 X-4 X-5 swarm: cached prefixes with KV entries of two formats on a host tier") {
  Probes probes = all_probes(kFormatHostSeeds);
  for (uint64_t seed = kFormatHostSeeds; seed < kFormatHostSeeds + 400; ++seed) {
    CAPTURE(seed);
    const SwarmResult result = run_swarm(seed, &probes);
    for (const std::string& difference : result.differences) CHECK_MESSAGE(false, difference);
  }
}

// Every request is served once, a page is reused only after its transfer ended (PageChecker knows the
// content of each), a source is released once, and routers decide the same under any coalescing.
TEST_CASE("X-3 X-4 swarm: different engines, separated prefill and decode, all routers") {
  Probes probes = all_probes(kClusterSeeds);
  for (uint64_t seed = kClusterSeeds; seed < kClusterSeeds + 400; ++seed) {
    CAPTURE(seed);
    const SwarmResult result = run_swarm(seed, &probes);
    for (const std::string& difference : result.differences) CHECK_MESSAGE(false, difference);
  }
  for (const auto& probe : probes) CHECK_MESSAGE(probe.second > 0, probe.first);
}
