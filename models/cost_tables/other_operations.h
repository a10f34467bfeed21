// Prices of operations on a GPU for which they were not measured, from measured profiles of others.

#ifndef KVTWIN_MODELS_COST_TABLES_OTHER_OPERATIONS_H_
#define KVTWIN_MODELS_COST_TABLES_OTHER_OPERATIONS_H_

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/cost_tables/measured_device.h"

namespace kvtwin {

struct OtherOperations {
  std::optional<MeasuredOperations> operations;
  std::vector<std::string> gpus;  // of the profiles, in order of their files
};

// The mean, family by family; a family that a profile lacks counts as 0 there. A step's price is then the
// mean of its prices. The error is the largest. REQUIRES: not empty.
MeasuredOperations mean_of_operations(std::span<const MeasuredOperations> all);

// The mean of all profiles in `folder` whose GPUs have as many SMs as `device`: SMs compute what methods add
// to steps.
OtherOperations operations_of_others(const std::string& folder, const MeasuredDevice& device);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_TABLES_OTHER_OPERATIONS_H_
