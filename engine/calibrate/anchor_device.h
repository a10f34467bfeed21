// measure_anchors(): in under a minute, whether a profile that was measured on another GPU of this kind is
// good here (models/device_drift.h has the rule).

#ifndef KVTWIN_ENGINE_CUDA_ANCHOR_DEVICE_H_
#define KVTWIN_ENGINE_CUDA_ANCHOR_DEVICE_H_

#include <vector>

#include "engine/cuda/calibrate_device.h"
#include "models/device_drift.h"

namespace kvtwin::cuda {

// Sizes that the profile's tables have, measured as calibrate_device() does. Errors: no GPU; no room; a
// profile of another model.
Result<std::vector<Anchor>> measure_anchors(const CalibrationRequest& request, const MeasuredDevice& profile);

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_ANCHOR_DEVICE_H_
