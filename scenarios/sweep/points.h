// The points of its axes that a sweep runs: all, or a sample.

#ifndef KVTWIN_SCENARIOS_SWEEP_POINTS_H_
#define KVTWIN_SCENARIOS_SWEEP_POINTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scenarios/sweep/axis.h"

namespace kvtwin {

enum class Sampler : uint8_t {
  kGrid,    // every combination; the last axis changes fastest
  kRandom,  // independent counter-based draws: point i does not depend on the number of points
  kSobol,   // a low-discrepancy sequence (Boost.Random; direction numbers of Joe and Kuo 2008)
};

struct Sampling {
  Sampler sampler = Sampler::kGrid;
  uint32_t samples = 0;  // for random and Sobol
  uint64_t seed = 1;     // for random; Sobol shifts all points by it, modulo 1
};

// `sampler`: sobol (the default), random, or "" with 0 samples for the grid. Errors name --sampler.
Result<Sampling> parse_sampling(const std::string& sampler, uint32_t samples, uint64_t seed);

// One value per axis.
using SweepPoint = std::vector<std::string>;

// The most points of one sweep.
constexpr size_t kSweepPointsMax = 1'000'000;

Result<std::vector<SweepPoint>> sweep_points(const std::vector<Axis>& axes, const Sampling& sampling);

// Part `index` of `count`, from 0: point i belongs to it if i % count == index.
struct Shard {
  uint32_t index = 0, count = 1;
  bool has(size_t point) const { return point % count == index; }
};
// Parses "0/4".
Result<Shard> parse_shard(std::string_view text);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_SWEEP_POINTS_H_
