// kvtwin_swarm FIRST [LAST]: runs the seeds FIRST .. LAST and prints the differences. `kvtwin_swarm SEED
// coalesced` and `kvtwin_swarm SEED single` print all events and commands of one seed. Over a thousand seeds
// or more, a situation that never occurred is a failure too.
//
// kvtwin_swarm digests FILE [BLOCKS | write]: compares digests with a file, or writes it (swarm_digests.h).

#include <fmt/format.h>

#include <charconv>
#include <string>
#include <string_view>

#include "tests/property/swarm/swarm.h"
#include "tests/property/swarm/swarm_digests.h"

namespace {

bool read_seed(std::string_view text, uint64_t* seed) {
  const auto end = std::from_chars(text.data(), text.data() + text.size(), *seed);
  return end.ec == std::errc() && end.ptr == text.data() + text.size();
}

int digests(const std::string& path, std::string_view mode) {
  if (mode == "write") return kvtwin::testing::write_digests(path) ? 0 : 1;
  uint64_t blocks = UINT64_MAX;
  if (!mode.empty() && !read_seed(mode, &blocks)) {
    fmt::print(stderr, "kvtwin_swarm digests FILE {}: a number of blocks, or write\n", mode);
    return 2;
  }
  const uint64_t others = kvtwin::testing::check_digests(path, blocks);
  if (others == 0) fmt::print("{}: all decisions are the same\n", path);
  return others == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc >= 3 && argc <= 4 && std::string_view(argv[1]) == "digests")
    return digests(argv[2], argc == 4 ? argv[3] : "");
  uint64_t first = 0, last = 0;
  const std::string_view mode = argc == 3 ? argv[2] : "";
  if ((mode == "coalesced" || mode == "single") && read_seed(argv[1], &first)) {
    kvtwin::testing::print_swarm(first, mode == "coalesced");
    return 0;
  }
  if (argc < 2 || argc > 3 || !read_seed(argv[1], &first) || !read_seed(argv[argc - 1], &last) ||
      last < first) {
    fmt::print(stderr, "kvtwin_swarm FIRST [LAST]: two seeds, the first not above the last\n");
    return 2;
  }
  kvtwin::testing::Probes probes = kvtwin::testing::all_probes(last);
  uint64_t failed = 0, events = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    const auto result = kvtwin::testing::run_swarm(seed, &probes);
    events += result.events;
    for (const std::string& difference : result.differences) fmt::print("seed {}: {}\n", seed, difference);
    failed += result.differences.empty() ? 0 : 1;
    if (first == last) fmt::print("seed {}: digest {:016x}\n", seed, result.digest);
  }
  uint64_t never = 0;
  for (const auto& [name, hits] : probes) {
    fmt::print("{:>10}  {}\n", hits, name);
    never += hits == 0 ? 1 : 0;
  }
  fmt::print("{} seeds, {} events, {} failed, {} situations never met\n", last - first + 1, events, failed,
             never);
  constexpr uint64_t kSeedsForAll = 1'000;
  return failed > 0 || (never > 0 && last - first + 1 >= kSeedsForAll) ? 1 : 0;
}
