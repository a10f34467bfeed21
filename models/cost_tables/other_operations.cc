#include "models/cost_tables/other_operations.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "engine/base/check.h"
#include "models/cost_tables/operation_cost.h"

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
  std::vector<MeasuredDevice> others;
  for (const std::string& file : profile_files(folder)) {
    Result<MeasuredDevice> other = load_measured_device(file);
    if (other && other->operations && other->sm_count == device.sm_count) others.push_back(std::move(*other));
  }
  const auto same = [&](const MeasuredDevice& other) { return other.gpu == device.gpu; };
  if (std::any_of(others.begin(), others.end(), same)) std::erase_if(others, std::not_fn(same));
  OtherOperations out;
  std::vector<MeasuredOperations> all;
  for (const MeasuredDevice& other : others) {
    const FamilyCounts prices = prices_of(*other.operations);
    // A file of another model may have taken them from one that is here too.
    const bool twice = std::any_of(all.begin(), all.end(),
                                   [&](const MeasuredOperations& one) { return prices_of(one) == prices; });
    if (!twice) all.push_back(*other.operations);
    if (std::find(out.gpus.begin(), out.gpus.end(), other.gpu) == out.gpus.end())
      out.gpus.push_back(other.gpu);
  }
  if (!all.empty()) out.operations = mean_of_operations(all);
  return out;
}

Result<MeasuredOperations> operations_of_profile(const std::string& file, const std::string& gpu) {
  Result<MeasuredDevice> other = load_measured_device(file);
  if (!other) return tl::unexpected<Error>(other.error());
  if (other->gpu != gpu)
    return make_error(file, fmt::format("was measured on {}, and this is {}", other->gpu, gpu),
                      "a file of this GPU");
  if (!other->operations)
    return make_error(file, "has no operations of methods",
                      fmt::format("kvtwin calibrate device --operations={} measures them", file));
  MeasuredOperations out = std::move(*other->operations);
  if (out.model.empty()) out.model = other->model;
  return out;
}

std::string profile_with_operations(const std::string& folder, const std::string& gpu) {
  for (const std::string& file : profile_files(folder)) {
    if (operations_of_profile(file, gpu)) return file;
  }
  return "";
}

}  // namespace kvtwin
