// Fits the served time of the dense engine's steps to a calibration scenario that drops and chooses nothing
// (models/cost_tables/served_time.h).

#ifndef KVTWIN_SCENARIOS_VALIDATE_SERVED_FIT_H_
#define KVTWIN_SCENARIOS_VALIDATE_SERVED_FIT_H_

#include <vector>

#include "models/cost_tables/measured_device.h"
#include "scenarios/validate/open_loop.h"

namespace kvtwin {

// Removes the figures of an earlier fit.
void forget_served(MeasuredDevice* device);
// `steps` are priced by `device` after forget_served(). Kinds of steps that are too rare get no figure.
void learn_served(const std::vector<PricedStep>& steps, MeasuredDevice* device);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_VALIDATE_SERVED_FIT_H_
