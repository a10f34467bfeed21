#include "models/cost/scaled_step.h"

#include <algorithm>
#include <cmath>

namespace kvtwin {

Ticks times_ratio(Ticks ticks, double ratio) {
  return static_cast<Ticks>(std::llround(static_cast<double>(ticks) * ratio));
}

double ratio_of(Ticks scaled, Ticks whole) {
  return whole > 0 ? static_cast<double>(scaled) / static_cast<double>(whole) : 1;
}

StepCost scaled_to(Ticks device, StepCost cost) {
  const double ratio = ratio_of(device, cost.device);
  cost.device = device;
  Ticks sum = 0;
  for (Ticks& ticks : cost.by_evidence) sum += ticks = times_ratio(ticks, ratio);
  // The parts sum to the step exactly: rounding goes to the largest.
  *std::max_element(cost.by_evidence.begin(), cost.by_evidence.end()) += device - sum;
  for (Ticks& ticks : cost.compression) ticks = times_ratio(ticks, ratio);
  cost.attention = times_ratio(cost.attention, ratio);
  return cost;
}

std::vector<StepPart> scaled_to(Ticks device, Ticks whole, std::vector<StepPart> parts) {
  if (parts.empty()) return parts;
  const double ratio = ratio_of(device, whole);
  Ticks sum = 0;
  for (StepPart& part : parts) {
    part.each = static_cast<Ticks>(std::floor(static_cast<double>(part.each) * ratio));
    sum += part.each * part.times;
  }
  parts.push_back({"rounding", PartKind::kSample, PartPlace::kAfter, 1, std::max<Ticks>(0, device - sum),
                   Evidence::kInterpolated});
  return parts;
}

}  // namespace kvtwin
