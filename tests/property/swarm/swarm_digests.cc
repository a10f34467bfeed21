#include "tests/property/swarm/swarm_digests.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "engine/base/prng.h"
#include "tests/property/swarm/swarm.h"

namespace kvtwin::testing {
namespace {

constexpr uint64_t kBlockSeeds = 50;
constexpr uint64_t kBlocks = 8;  // of each family: 4,000 seeds
constexpr uint64_t kFamilies[] = {
    1,
    kRetentionSeeds,
    kFormatSeeds,
    kPrefixCheckpointSeeds,
    kClusterSeeds,
    kSwapSeeds,
    kRetentionSwapSeeds,
    kResidentSeeds,
    kDiskSeeds,
    kEvictionSeeds,
    kPassSeeds,
    kCheckpointRoomSeeds,
    kFormatSwapSeeds,
    kCheckpointHostSeeds,
    kFormatHostSeeds,
};

std::string line_of(uint64_t first) {
  const uint64_t last = first + kBlockSeeds - 1;
  uint64_t hash = 0;
  for (uint64_t seed = first; seed <= last; ++seed) hash = draw({hash, swarm_digest(seed)});
  return fmt::format("{} {} {:016x}", first, last, hash);
}

}  // namespace

uint64_t check_digests(const std::string& path, uint64_t blocks) {
  std::ifstream file(path);
  std::stringstream text;
  text << '\n' << file.rdbuf();
  if (!file) {
    fmt::print("{}: cannot be read; kvtwin_swarm digests {} write writes it\n", path, path);
    return UINT64_MAX;
  }
  const std::string lines = text.str();
  uint64_t others = 0;
  for (const uint64_t family : kFamilies) {
    for (uint64_t block = 0; block < blocks && block < kBlocks; ++block) {
      const uint64_t first = family + block * kBlockSeeds;
      const size_t at = lines.find(fmt::format("\n{} {} ", first, first + kBlockSeeds - 1));
      if (at == std::string::npos) {
        fmt::print("{}: has no block of seeds from {} on; kvtwin_swarm digests {} write writes it\n", path,
                   first, path);
        return UINT64_MAX;
      }
      const std::string expected = lines.substr(at + 1, lines.find('\n', at + 1) - at - 1);
      const std::string found = line_of(first);
      if (found == expected) continue;
      ++others;
      fmt::print("{}: seeds with other decisions: {}, not {}\n", path, found, expected);
    }
  }
  return others;
}

bool write_digests(const std::string& path) {
  std::ofstream file(path);
  file
      << "# Digests of swarm seeds, by blocks. `kvtwin_swarm digests FILE [BLOCKS]` compares with them, and\n"
         "# `kvtwin_swarm digests FILE write` writes them after an intended change of decisions or digest.\n";
  for (const uint64_t family : kFamilies) {
    for (uint64_t block = 0; block < kBlocks; ++block) file << line_of(family + block * kBlockSeeds) << '\n';
  }
  file.flush();
  return file.good();
}

}  // namespace kvtwin::testing
