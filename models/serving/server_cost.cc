#include "models/serving/server_cost.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvtwin {
namespace {

// The decodes of `shape` alone; one token where it has none.
StepShape decodes_of(const StepShape& shape) {
  StepShape out = shape;
  out.chunks = {};
  out.compressions = {};
  out.copied_pages = 0;
  out.decodes = std::max(1u, shape.decodes);
  out.tokens = out.logits_rows = out.decodes;
  out.tokens_padded = shape.chunks.empty() ? shape.tokens_padded : out.decodes;
  return out;
}

StepShape without_contexts(StepShape shape) {
  shape.decode_context_sum = shape.decode_context_max = 0;
  shape.decode_low_bit_sum = shape.unpacked_context_sum = shape.chosen_from = 0;
  return shape;
}

Ticks times_ratio(Ticks ticks, double ratio) {
  return static_cast<Ticks>(std::llround(static_cast<double>(ticks) * ratio));
}

double ratio_of(Ticks scaled, Ticks whole) {
  return whole > 0 ? static_cast<double>(scaled) / static_cast<double>(whole) : 1;
}

}  // namespace

ServerCost::ServerCost(const ServerTimes& times, std::unique_ptr<CostModel> base)
    : CostOnTop(std::move(base)), times_(times) {}

Ticks ServerCost::scaled(const StepShape& shape, Ticks whole) {
  const StepShape decodes = decodes_of(shape);
  const Ticks floor = std::min(whole, below().step(without_contexts(decodes)).device);
  Ticks read = whole;
  if (shape.decodes == 0) {
    read = floor;
  } else if (!shape.chunks.empty()) {
    read = std::clamp(below().step(decodes).device, floor, whole);
  }
  return static_cast<Ticks>(std::llround(times_.weights * static_cast<double>(floor) +
                                         times_.kv * static_cast<double>(read - floor) +
                                         times_.prefill * static_cast<double>(whole - read)));
}

StepCost ServerCost::step(const StepShape& shape) {
  StepCost cost = below().step(shape);
  const Ticks whole = cost.device;
  cost.device = scaled(shape, whole);
  const double ratio = ratio_of(cost.device, whole);
  Ticks sum = 0;
  for (Ticks& ticks : cost.by_evidence) sum += ticks = times_ratio(ticks, ratio);
  // The parts sum to the step exactly: rounding goes to the largest.
  *std::max_element(cost.by_evidence.begin(), cost.by_evidence.end()) += cost.device - sum;
  for (Ticks& ticks : cost.compression) ticks = times_ratio(ticks, ratio);
  const auto requests = static_cast<double>(shape.decodes + shape.chunks.size());
  cost.host += times_ratio(kTicksPerNs, times_.host_step_ns + times_.host_request_ns * requests);
  return cost;
}

StepRange ServerCost::range(const StepShape& shape) {
  StepRange range = below().range(shape);
  const Ticks whole = below().step(shape).device;
  const double ratio = ratio_of(scaled(shape, whole), whole);
  return {times_ratio(range.low, ratio), times_ratio(range.high, ratio)};
}

std::vector<StepPart> ServerCost::ops(const StepShape& shape) {
  std::vector<StepPart> parts = below().ops(shape);
  if (parts.empty()) return parts;
  const Ticks whole = below().step(shape).device;
  const Ticks device = scaled(shape, whole);
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
