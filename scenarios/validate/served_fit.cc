#include "scenarios/validate/served_fit.h"

#include <algorithm>
#include <array>
#include <optional>

#include "models/cost/graph_shapes.h"
#include "models/cost_tables/served_time.h"

namespace kvtwin {
namespace {

// The clock has recovered from prompt chunks after this time.
constexpr uint32_t kCalmMs = 100;
constexpr size_t kLeast = 12;  // fewest steps for a figure

// The kind of served step; nullopt: the step gives no information.
std::optional<Served> kind_of(const PricedStep& step) {
  if (step.chunks)
    return step.padded <= GraphShapes::kManyRows ? std::optional(Served::kFewRows) : std::nullopt;
  if (step.graph != GraphUse::kReplayed || step.calm_ms < kCalmMs) return std::nullopt;
  if (step.behind_many) return Served::kBehindMany;
  for (size_t i = 0; i < kServedRequests; ++i) {
    if (step.samples <= 2u << i) return static_cast<Served>(static_cast<size_t>(Served::kBehindFew2) + i);
  }
  return std::nullopt;
}

}  // namespace

void forget_served(MeasuredDevice* device) {
  std::erase_if(device->figures, [](const MeasuredFigure& one) { return one.name.starts_with("served "); });
}

void learn_served(const std::vector<PricedStep>& steps, MeasuredDevice* device) {
  std::array<std::vector<double>, kServed> off;
  for (const PricedStep& step : steps) {
    if (const std::optional<Served> kind = kind_of(step))
      off[static_cast<size_t>(*kind)].push_back(step.measured - step.predicted);
  }
  for (size_t i = 0; i < kServed; ++i) {
    if (off[i].size() < kLeast) continue;
    const Measured middle = measured_of(off[i]);
    device->figures.push_back({figure_of(static_cast<Served>(i)), "us", middle.us, middle.p10, middle.p90});
  }
}

}  // namespace kvtwin
