#include "models/serving/server_cost.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/cost/scaled_step.h"

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
  const StepCost below_cost = below().step(shape);
  StepCost cost = scaled_to(scaled(shape, below_cost.device), below_cost);
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
  const Ticks whole = below().step(shape).device;
  return scaled_to(scaled(shape, whole), whole, below().ops(shape));
}

}  // namespace kvtwin
