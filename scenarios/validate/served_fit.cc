#include "scenarios/validate/served_fit.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "models/graph_shapes.h"
#include "models/served_time.h"

namespace kvtwin {
namespace {

// By then the clock is back from chunks.
constexpr uint32_t kCalmMs = 100;
constexpr size_t kLeast = 12;  // steps that say something

// Absent: not this step's to say.
std::optional<Served> kind_of(const PricedStep& step) {
  if (step.chunks)
    return step.padded <= GraphShapes::kManyRows ? std::optional(Served::kFewRows) : std::nullopt;
  if (step.graph != GraphUse::kReplayed) return static_cast<Served>(step.graph);
  if (step.calm_ms < kCalmMs) return std::nullopt;
  return step.behind_many ? Served::kBehindMany : Served::kBehindFew;
}

// The mean of the middle three fifths.
double middle_of(std::vector<double> us) {
  std::sort(us.begin(), us.end());
  const auto out = static_cast<ptrdiff_t>(us.size() / 5);
  return std::accumulate(us.begin() + out, us.end() - out, 0.0) /
         static_cast<double>(us.end() - us.begin() - 2 * out);
}

}  // namespace

void forget_served(MeasuredDevice* device) {
  for (size_t i = 0; i < kServed; ++i) {
    std::erase_if(device->figures,
                  [i](const MeasuredFigure& one) { return one.name == figure_of(static_cast<Served>(i)); });
  }
}

void learn_served(const std::vector<PricedStep>& steps, MeasuredDevice* device) {
  std::array<std::vector<double>, kServed> off;
  for (const PricedStep& step : steps) {
    if (const std::optional<Served> kind = kind_of(step))
      off[static_cast<size_t>(*kind)].push_back(step.measured - step.predicted);
  }
  for (size_t i = 0; i < kServed; ++i) {
    if (off[i].size() < kLeast) continue;
    const Measured spread = measured_of(off[i]);
    const double us = middle_of(off[i]);
    device->figures.push_back(
        {figure_of(static_cast<Served>(i)), "us", us, std::min(us, spread.p10), std::max(us, spread.p90)});
  }
}

}  // namespace kvtwin
