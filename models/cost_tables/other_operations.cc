#include "models/cost_tables/other_operations.h"

#include <algorithm>
#include <map>

#include "engine/base/check.h"

namespace kvtwin {

MeasuredOperations mean_of_operations(std::span<const MeasuredOperations> all) {
  KVT_CHECK(!all.empty());
  MeasuredOperations out;
  std::map<std::string, double> sums;
  for (const MeasuredOperations& one : all) {
    for (const MeasuredOperations::Price& price : one.prices) sums[price.of] += price.ns;
    out.steps += one.steps;
    out.error_median = std::max(out.error_median, one.error_median);
    out.error_p90 = std::max(out.error_p90, one.error_p90);
  }
  for (const auto& [of, sum] : sums) out.prices.push_back({of, sum / static_cast<double>(all.size())});
  return out;
}

OtherOperations operations_of_others(const std::string& folder, const MeasuredDevice& device) {
  OtherOperations out;
  std::vector<MeasuredOperations> all;
  for (const std::string& file : profile_files(folder)) {
    const Result<MeasuredDevice> other = load_measured_device(file);
    if (!other || !other->operations || other->sm_count != device.sm_count) continue;
    all.push_back(*other->operations);
    if (std::find(out.gpus.begin(), out.gpus.end(), other->gpu) == out.gpus.end())
      out.gpus.push_back(other->gpu);
  }
  if (!all.empty()) out.operations = mean_of_operations(all);
  return out;
}

}  // namespace kvtwin
