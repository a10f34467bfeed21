// A step's price, scaled as a whole to another device time: its evidence, compressions and operations keep
// their shares, and sum to the new time exactly.

#ifndef KVTWIN_MODELS_COST_SCALED_STEP_H_
#define KVTWIN_MODELS_COST_SCALED_STEP_H_

#include <vector>

#include "models/cost/cost_model.h"

namespace kvtwin {

// Rounded to the nearest tick.
Ticks times_ratio(Ticks ticks, double ratio);
// 1 if `whole` is 0.
double ratio_of(Ticks scaled, Ticks whole);

StepCost scaled_to(Ticks device, StepCost cost);
// `whole`: the sum of `parts`. Empty parts stay empty.
std::vector<StepPart> scaled_to(Ticks device, Ticks whole, std::vector<StepPart> parts);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_SCALED_STEP_H_
