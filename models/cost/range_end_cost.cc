#include "models/cost/range_end_cost.h"

#include "models/cost/scaled_step.h"

namespace kvtwin {

Ticks RangeEndCost::device(const StepShape& shape) {
  const StepRange range = below().range(shape);
  return end_ == RangeEnd::kLow ? range.low : range.high;
}

StepCost RangeEndCost::step(const StepShape& shape) { return scaled_to(device(shape), below().step(shape)); }

std::vector<StepPart> RangeEndCost::ops(const StepShape& shape) {
  return scaled_to(device(shape), below().step(shape).device, below().ops(shape));
}

}  // namespace kvtwin
