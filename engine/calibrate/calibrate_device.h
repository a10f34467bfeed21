// calibrate_device() measures the duration of this engine's steps on this GPU, as tables that
// models/cost_tables/measured_cost.h prices steps with. It takes about two minutes for a model of 8 billion
// parameters and four for one of 32 billion.

#ifndef KVTWIN_ENGINE_CALIBRATE_CALIBRATE_DEVICE_H_
#define KVTWIN_ENGINE_CALIBRATE_CALIBRATE_DEVICE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "models/catalog/llm.h"
#include "models/cost_tables/measured_device.h"

namespace kvtwin::cuda {

struct CalibrationRequest {
  LlmSpec llm;
  uint32_t page_tokens = 16;
  uint64_t seed = 1;        // of the weights
  bool quick = false;       // few sizes only, to check that calibration works
  std::string build, date;  // recorded in the file
  std::function<void(const std::string&)> progress{};
};

// Numbers of rows for which matrix products are measured. Scenarios that are compared with a prediction
// should use these capture sizes: other sizes are interpolated, and cuBLASLt's kernels change in steps.
std::vector<uint32_t> calibrated_rows(bool quick);

// Errors: no GPU; not enough memory.
Result<MeasuredDevice> calibrate_device(const CalibrationRequest& request);

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CALIBRATE_CALIBRATE_DEVICE_H_
