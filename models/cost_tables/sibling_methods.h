// Prices of a method on a GPU for which it was not calibrated, from measured profiles of other GPUs.

#ifndef KVTWIN_MODELS_COST_TABLES_SIBLING_METHODS_H_
#define KVTWIN_MODELS_COST_TABLES_SIBLING_METHODS_H_

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/cost_tables/measured_device.h"

namespace kvtwin {

struct SiblingMethod {
  MeasuredMethod method;
  std::vector<std::string> gpus;  // of the profiles, in order of their files
};

// The mean of calibrations of the same method and model, term by term; a term that a calibration lacks counts
// as 0 there. Prices are linear in their terms, so a step's price is the mean of its prices. The error is the
// largest. Calibrations of equal GPUs differ, so the mean of several is closer than any one.
// The least time of a step during which a graph is created is left out: it is the time to read the weights,
// which follows from the GPU's memory. REQUIRES: not empty, equal names and models.
MeasuredMethod mean_of_calibrations(std::span<const MeasuredMethod> methods);

// From all profiles in `folder` whose GPUs have as many SMs as `device`: SMs compute what methods add to
// steps, and the host starts it. Empty: none of them holds this method for the device's model.
std::optional<SiblingMethod> sibling_method(const std::string& folder, const MeasuredDevice& device,
                                            const std::string& name);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_TABLES_SIBLING_METHODS_H_
