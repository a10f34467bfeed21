// Calibration of methods on this machine: runs the scenarios of scenarios/suites/calibration on the engine
// and fits prices to their steps (method_fit.h). The traces have no length, batch or mixture in common with
// those of scenarios/suites/validation.

#ifndef KVTWIN_SCENARIOS_VALIDATE_METHOD_CALIBRATION_H_
#define KVTWIN_SCENARIOS_VALIDATE_METHOD_CALIBRATION_H_

#include <functional>
#include <string>
#include <vector>

#include "models/cost_tables/measured_device.h"
#include "scenarios/load/scenario.h"

namespace kvtwin {

struct MethodCalibrationRequest {
  std::vector<std::string> scenarios;  // files; several may be of one method
  std::vector<std::string> sets;
  std::string profile;     // file of kvtwin calibrate device, of this machine
  std::string recordings;  // folder: DIR/NAME/1, NAME being the file's without its end
  bool record = false;     // first make those that are not there
  std::string work;        // folder for what is not kept; it must exist
  std::function<void(const std::string&)> progress{};
};

// The profile with its methods replaced where scenarios are of them, and kept where none is. Scenarios that
// could not be run or read are in `failed`; the others' methods are in the profile all the same. Errors: none
// could.
Result<MeasuredDevice> calibrate_methods(const MethodCalibrationRequest& request, Errors* failed);

// One line per method and its terms.
std::string methods_table(const MeasuredDevice& device);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_VALIDATE_METHOD_CALIBRATION_H_
