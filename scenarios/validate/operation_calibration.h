// What KV methods add to steps of this machine's engine, by family of operations: runs the scenarios of
// scenarios/suites/calibration, each a method or several of its operations in steps of few sizes, and
// computes one price per family from the differences to the dense engine's steps (operation_fit.h). The
// traces have no length, batch or mixture in common with those of scenarios/suites/validation.

#ifndef KVTWIN_SCENARIOS_VALIDATE_OPERATION_CALIBRATION_H_
#define KVTWIN_SCENARIOS_VALIDATE_OPERATION_CALIBRATION_H_

#include <functional>
#include <string>
#include <vector>

#include "models/cost_tables/measured_device.h"
#include "scenarios/load/scenario.h"

namespace kvtwin {

struct OperationCalibrationRequest {
  std::vector<std::string> scenarios;  // files
  std::vector<std::string> sets;
  std::string recordings;  // folder: DIR/NAME/1, NAME being the file's without its end
  bool record = false;     // first make those that are not there
  std::string work;        // folder for what is not kept; it must exist
  std::function<void(const std::string&)> progress{};
};

// `device` with the prices of operations, and with the host's time between steps.
// Scenarios that could not be run or read are in `failed`; the others count all the same. Errors: none could.
Result<MeasuredDevice> calibrate_operations(const OperationCalibrationRequest& request, MeasuredDevice device,
                                            Errors* failed);

// One line per family.
std::string operations_table(const MeasuredOperations& operations);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_VALIDATE_OPERATION_CALIBRATION_H_
