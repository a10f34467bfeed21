// Prices of operations for a profile in which they were not measured, from others: of the same GPU with
// another model, or of other GPUs.

#ifndef KVTWIN_MODELS_COST_TABLES_OTHER_OPERATIONS_H_
#define KVTWIN_MODELS_COST_TABLES_OTHER_OPERATIONS_H_

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "models/cost_tables/measured_device.h"

namespace kvtwin {

struct OtherOperations {
  std::optional<MeasuredOperations> operations;
  std::vector<std::string> gpus;  // of the profiles, in order of their files
};

// The mean, family by family; a family that a profile lacks counts as 0 there. A step's price is then the
// mean of its prices. The error is the largest. REQUIRES: not empty.
MeasuredOperations mean_of_operations(std::span<const MeasuredOperations> all);

// The mean of the profiles in `folder` of this GPU; where there are none, of all whose GPUs have as many SMs:
// SMs compute what methods add to steps. Equal prices count once.
OtherOperations operations_of_others(const std::string& folder, const MeasuredDevice& device);

// Operations of `file`, a profile of `gpu` with any model: prices of families do not depend on it. Errors: it
// is of another GPU, or has none.
Result<MeasuredOperations> operations_of_profile(const std::string& file, const std::string& gpu);
// The first profile in `folder` from which operations_of_profile() takes them; "": none.
std::string profile_with_operations(const std::string& folder, const std::string& gpu);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_TABLES_OTHER_OPERATIONS_H_
