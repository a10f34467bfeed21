// What steps of the dense engine take as they are served, learnt from a calibration scenario in which nothing
// is dropped or chosen (models/cost_tables/served_time.h).

#ifndef KVTWIN_SCENARIOS_VALIDATE_SERVED_FIT_H_
#define KVTWIN_SCENARIOS_VALIDATE_SERVED_FIT_H_

#include <vector>

#include "models/cost_tables/measured_device.h"
#include "scenarios/validate/open_loop.h"

namespace kvtwin {

// Without what was learnt before.
void forget_served(MeasuredDevice* device);
// `steps` are priced by `device` after forget_served(). Of what is too rare among them nothing is said.
void learn_served(const std::vector<PricedStep>& steps, MeasuredDevice* device);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_VALIDATE_SERVED_FIT_H_
