// Swarm testing: every seed draws its own limits, so that most runs are extreme in some direction: pools of
// one page, budgets of one token, steps that take no time, a host tier of three pages.
//
// One seed runs four times: coalesced, coalesced again, with every step launched alone, and with coalesced
// steps answered in parts. All four must make the same decisions, answer every request at the same instant,
// and produce equal logs and metrics; so must a replay of the log.

#ifndef KVTWIN_TESTS_PROPERTY_SWARM_SWARM_H_
#define KVTWIN_TESTS_PROPERTY_SWARM_SWARM_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvtwin::testing {

// How often each rare situation occurred. Every name is listed before the first run, so that one that never
// occurs is noticed.
using Probes = std::map<std::string, uint64_t>;
// The situations that the seeds up to `last` must reach.
Probes all_probes(uint64_t last);

// From this seed on, policy sets drop KV entries: head groups, rings, dropped slots, and counts from the
// backend.
constexpr uint64_t kRetentionSeeds = 1'000'000;

// From this seed on, KV entries get 2 or 4 bits by tag, in mixed precision pools.
constexpr uint64_t kFormatSeeds = 2'000'000;

// From this seed on, requests that drop KV entries at chunk ends share their retained prefixes.
constexpr uint64_t kPrefixCheckpointSeeds = 3'000'000;

// From this seed on, several engines with all routing policies, in most cases with prefill and decode
// separated.
constexpr uint64_t kClusterSeeds = 4'000'000;

// From this seed on, preempted requests are swapped out to the host.
constexpr uint64_t kSwapSeeds = 5'000'000;

// From this seed on, preempted requests whose KV entries were dropped are swapped out to the host.
constexpr uint64_t kRetentionSwapSeeds = 6'000'000;

// From this seed on, requests with resident pages start with host pages of other requests' prompts.
constexpr uint64_t kResidentSeeds = 7'000'000;

// From this seed on, a disk tier is below the host tier.
constexpr uint64_t kDiskSeeds = 8'000'000;

// From this seed on, prefixes are evicted by clients' hints, or by cost.
constexpr uint64_t kEvictionSeeds = 9'000'000;

// From this seed on, passes of probe tokens precede the compressions of prompts.
constexpr uint64_t kPassSeeds = 10'000'000;

// From this seed on, compressed prefixes are in one queue with free pages, or next to full reservations of
// requests whose counts the data decides.
constexpr uint64_t kCheckpointRoomSeeds = 11'000'000;

// From this seed on, preempted requests whose KV entries are in two formats are swapped out to the host.
constexpr uint64_t kFormatSwapSeeds = 12'000'000;

// From this seed on, compressed prefixes are copied to a host tier.
constexpr uint64_t kCheckpointHostSeeds = 13'000'000;

// From this seed on, cached prefixes in two formats are copied to a host tier.
constexpr uint64_t kFormatHostSeeds = 14'000'000;

struct SwarmResult {
  uint64_t digest = 0;
  uint64_t events = 0;
  std::vector<std::string> differences;  // the failed comparisons; empty: the seed passes
};

// Runs one seed and adds its situations to *probes. A broken invariant aborts (KVT_CHECK) and names the seed.
SwarmResult run_swarm(uint64_t seed, Probes* probes);

// The digest of one seed, run once without observers.
uint64_t swarm_digest(uint64_t seed);

// Prints every event and command of one seed, coalesced or not, so that two printouts can be compared.
void print_swarm(uint64_t seed, bool coalesced);

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_PROPERTY_SWARM_SWARM_H_
