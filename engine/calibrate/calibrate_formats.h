// Calibration of steps whose KV is not bf16 (fp8, int4, TriAxialKV's int2 and int4): tables of MeasuredKv, as
// differences to the same steps in bf16. It takes about 25 s for a model of 8 billion parameters.

#ifndef KVTWIN_ENGINE_CALIBRATE_CALIBRATE_FORMATS_H_
#define KVTWIN_ENGINE_CALIBRATE_CALIBRATE_FORMATS_H_

#include "engine/base/result.h"
#include "engine/calibrate/calibrate_device.h"
#include "engine/calibrate/step_bench.h"

namespace kvtwin::cuda {

// Replaces device->formats, and adds steps that are in none of its tables to device->held_out. `plain` is a
// bf16 bench with the same weights, `model`.
// REQUIRES: *device has the tables of request.llm.
Result<void> calibrate_formats(const CalibrationRequest& request, const DeviceModel* model, StepBench* plain,
                               MeasuredDevice* device);

// Does the same for an existing file of this very machine, with its own bench. Errors: no GPU; not enough
// memory; no tables of the model.
Result<MeasuredDevice> with_formats(const CalibrationRequest& request, MeasuredDevice device);

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CALIBRATE_CALIBRATE_FORMATS_H_
