#include "scenarios/sweep/points.h"

#include <fmt/format.h>

#include <boost/random/sobol.hpp>
#include <charconv>

#include "engine/base/prng.h"

namespace kvtwin {
namespace {

Result<std::vector<SweepPoint>> grid(const std::vector<Axis>& axes) {
  size_t count = 1;
  for (const Axis& axis : axes) {
    if (axis.sampled())
      return make_error(fmt::format("--vary={}", axis.field), "is a range without steps",
                        "give steps (1..8*2, 1..8+1), or --samples=N");
    if (axis.values.size() > kSweepPointsMax / count)
      return make_error("--vary", fmt::format("there are more than {} combinations", kSweepPointsMax),
                        "sample them: --samples=N");
    count *= axis.values.size();
  }
  std::vector<SweepPoint> points(count);
  for (size_t i = 0; i < count; ++i) {
    size_t rest = i;
    points[i].resize(axes.size());
    for (size_t a = axes.size(); a-- > 0;) {
      points[i][a] = axes[a].values[rest % axes[a].values.size()];
      rest /= axes[a].values.size();
    }
  }
  return points;
}

std::vector<SweepPoint> random_points(const std::vector<Axis>& axes, const Sampling& sampling) {
  std::vector<SweepPoint> points(sampling.samples);
  for (uint64_t i = 0; i < points.size(); ++i) {
    for (uint64_t a = 0; a < axes.size(); ++a)
      points[i].push_back(axes[a].at(static_cast<double>(draw({sampling.seed, i, a}) >> 11) * 0x1p-53));
  }
  return points;
}

std::vector<SweepPoint> sobol_points(const std::vector<Axis>& axes, const Sampling& sampling) {
  boost::random::sobol sequence(axes.size());
  std::vector<SweepPoint> points(sampling.samples);
  for (SweepPoint& point : points) {
    for (uint64_t a = 0; a < axes.size(); ++a) {
      // Integer addition wraps around, so the shifted sequence keeps its low discrepancy.
      const uint64_t word = static_cast<uint64_t>(sequence()) + draw({sampling.seed, a});
      point.push_back(axes[a].at(static_cast<double>(word >> 11) * 0x1p-53));
    }
  }
  return points;
}

}  // namespace

Result<Sampling> parse_sampling(const std::string& sampler, uint32_t samples, uint64_t seed) {
  if (sampler.empty() && samples == 0) return Sampling{Sampler::kGrid, samples, seed};
  if (!sampler.empty() && sampler != "sobol" && sampler != "random")
    return make_error("--sampler", fmt::format("there is no sampler \"{}\"", sampler), "sobol or random");
  return Sampling{sampler == "random" ? Sampler::kRandom : Sampler::kSobol, samples, seed};
}

Result<std::vector<SweepPoint>> sweep_points(const std::vector<Axis>& axes, const Sampling& sampling) {
  if (sampling.sampler == Sampler::kGrid) return grid(axes);
  if (sampling.samples == 0 || sampling.samples > kSweepPointsMax)
    return make_error("--samples", fmt::format("{} points cannot be sampled", sampling.samples),
                      fmt::format("1 to {}", kSweepPointsMax));
  return sampling.sampler == Sampler::kSobol ? sobol_points(axes, sampling) : random_points(axes, sampling);
}

Result<Shard> parse_shard(std::string_view text) {
  Shard shard;
  const size_t slash = text.find('/');
  const auto whole = [](std::string_view digits, uint32_t* value) {
    const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), *value);
    return !digits.empty() && failed == std::errc{} && end == digits.data() + digits.size();
  };
  if (slash == std::string_view::npos || !whole(text.substr(0, slash), &shard.index) ||
      !whole(text.substr(slash + 1), &shard.count) || shard.index >= shard.count)
    return make_error("--shard", fmt::format("\"{}\" is not a shard", text),
                      "give INDEX/COUNT, INDEX from 0, as in 0/4");
  return shard;
}

}  // namespace kvtwin
