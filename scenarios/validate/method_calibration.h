// Calibration of methods on this machine: runs the scenarios of scenarios/suites/calibration on the engine
// and fits prices to their steps (method_fit.h). The traces have no length, batch or mixture in common with
// those of scenarios/suites/validation.

#ifndef KVTWIN_SCENARIOS_VALIDATE_METHOD_CALIBRATION_H_
#define KVTWIN_SCENARIOS_VALIDATE_METHOD_CALIBRATION_H_

#include <functional>
#include <string>
#include <vector>

#include "models/cost_tables/measured_device.h"

namespace kvtwin {

struct MethodCalibrationRequest {
  std::vector<std::string> scenarios;  // files; several may be of one method
  std::vector<std::string> sets;
  std::string profile;     // output of kvtwin calibrate device on this machine
  std::string recordings;  // folder: DIR/NAME/1, NAME being the file's stem
  bool record = false;     // make the recordings first
  std::string work;        // folder for temporary files; it must exist
  std::function<void(const std::string&)> progress{};
};

// Returns the profile with the methods of the scenarios replaced; other methods stay.
Result<MeasuredDevice> calibrate_methods(const MethodCalibrationRequest& request);

// One line per method with its terms.
std::string methods_table(const MeasuredDevice& device);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_VALIDATE_METHOD_CALIBRATION_H_
