// Swarm testing: every seed draws its own limits, so that most runs are extreme in some direction: pools of
// one page, budgets of one token, steps that take no time, a host tier of three pages.
//
// One seed is run four times: coalesced, coalesced again, with every step on its own, and with stretches
// answered in pieces. All four must decide the same, answer every request at the same instant, leave equal
// logs behind and come to the same metrics; and so must a replay of the log.

#ifndef KVTWIN_TESTS_PROPERTY_SWARM_SWARM_H_
#define KVTWIN_TESTS_PROPERTY_SWARM_SWARM_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvtwin::testing {

// How often each rare situation was met. Every name is listed before the first run, so that one that is
// never met is seen.
using Probes = std::map<std::string, uint64_t>;
// Those that the seeds up to `last` must meet.
Probes all_probes(uint64_t last);

// From this seed on, policy sets drop KV entries: head groups, rings, dropped slots, and counts that the
// backend answers.
constexpr uint64_t kRetentionSeeds = 1'000'000;

// From this seed on, KV entries get 2 or 4 bits by tag, in two pools.
constexpr uint64_t kFormatSeeds = 2'000'000;

// From this seed on, requests that drop KV entries at chunk ends share what is left of their prefixes.
constexpr uint64_t kPrefixCheckpointSeeds = 3'000'000;

// From this seed on, several engines with all ways of routing, in most cases with prompts and decodes apart.
constexpr uint64_t kClusterSeeds = 4'000'000;

// From this seed on, requests that are sent away take their pages to the host.
constexpr uint64_t kSwapSeeds = 5'000'000;

// From this seed on, requests with resident pages begin with what others left of their prompt on the host.
constexpr uint64_t kResidentSeeds = 7'000'000;

// From this seed on, a disk stands behind the host tier.
constexpr uint64_t kDiskSeeds = 8'000'000;

// From this seed on, prefixes are evicted by what clients say, or by cost.
constexpr uint64_t kEvictionSeeds = 9'000'000;

struct SwarmResult {
  uint64_t digest = 0;
  uint64_t events = 0;
  std::vector<std::string> differences;  // what was not as it should be; empty: all well
};

// Runs one seed and adds what it met to *probes. A broken invariant aborts (KVT_CHECK) and names the seed.
SwarmResult run_swarm(uint64_t seed, Probes* probes);

// Prints every event and command of one seed, coalesced or not: to read two of them side by side.
void print_swarm(uint64_t seed, bool coalesced);

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_PROPERTY_SWARM_SWARM_H_
