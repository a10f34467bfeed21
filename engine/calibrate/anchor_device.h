// measure_anchors(): in under a minute, whether a profile that was measured on another GPU of this kind is
// good here (models/cost_tables/device_drift.h has the rule).

#ifndef KVTWIN_ENGINE_CALIBRATE_ANCHOR_DEVICE_H_
#define KVTWIN_ENGINE_CALIBRATE_ANCHOR_DEVICE_H_

#include <vector>

#include "engine/calibrate/calibrate_device.h"
#include "models/cost_tables/device_drift.h"

namespace kvtwin::cuda {

// Sizes that the profile's tables have, measured as calibrate_device() does. Errors: no GPU; no room; a
// profile of another model.
Result<std::vector<Anchor>> measure_anchors(const CalibrationRequest& request, const MeasuredDevice& profile);

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CALIBRATE_ANCHOR_DEVICE_H_
