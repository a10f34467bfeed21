// measure_anchors() checks in less than a minute whether a profile that was measured on another GPU of the
// same kind applies here (models/cost_tables/device_drift.h defines the criterion).

#ifndef KVTWIN_ENGINE_CALIBRATE_ANCHOR_DEVICE_H_
#define KVTWIN_ENGINE_CALIBRATE_ANCHOR_DEVICE_H_

#include <vector>

#include "engine/calibrate/calibrate_device.h"
#include "models/cost_tables/device_drift.h"

namespace kvtwin::cuda {

// Measures sizes that the profile's tables contain, in the same way as calibrate_device(). Errors: no GPU;
// not enough memory; a profile of another model.
Result<std::vector<Anchor>> measure_anchors(const CalibrationRequest& request, const MeasuredDevice& profile);

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CALIBRATE_ANCHOR_DEVICE_H_
