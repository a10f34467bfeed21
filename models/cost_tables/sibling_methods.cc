#include "models/cost_tables/sibling_methods.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "engine/base/check.h"
#include "models/cost_tables/method_cost.h"

namespace kvtwin {
namespace {

std::vector<std::string> profiles_in(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code failed;
  for (std::filesystem::directory_iterator at(folder, failed), end; !failed && at != end;
       at.increment(failed)) {
    if (at->path().extension() == ".textproto") files.push_back(at->path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

MeasuredMethod mean_of_calibrations(std::span<const MeasuredMethod> methods) {
  KVT_CHECK(!methods.empty());
  MeasuredMethod out{methods.front().name, methods.front().model, {}, 0, 0, 0};
  std::map<std::string, double> sums;
  for (const MeasuredMethod& one : methods) {
    KVT_CHECK(one.name == out.name && one.model == out.model);
    for (const MeasuredMethod::Term& term : one.terms) sums[term.of] += term.us;
    out.steps += one.steps;
    out.error_median = std::max(out.error_median, one.error_median);
    out.error_p90 = std::max(out.error_p90, one.error_p90);
  }
  sums.erase(name_of(MethodTerm::kRecorded));
  for (const auto& [name, sum] : sums) out.terms.push_back({name, sum / static_cast<double>(methods.size())});
  return out;
}

std::optional<SiblingMethod> sibling_method(const std::string& folder, const MeasuredDevice& device,
                                            const std::string& name) {
  std::vector<MeasuredMethod> found;
  SiblingMethod out;
  for (const std::string& file : profiles_in(folder)) {
    const Result<MeasuredDevice> other = load_measured_device(file);
    if (!other || other->sm_count != device.sm_count) continue;
    const MeasuredMethod* const method = other->method(name, device.model);
    if (method == nullptr) continue;
    found.push_back(*method);
    if (std::find(out.gpus.begin(), out.gpus.end(), other->gpu) == out.gpus.end())
      out.gpus.push_back(other->gpu);
  }
  if (found.empty()) return {};
  out.method = mean_of_calibrations(found);
  return out;
}

}  // namespace kvtwin
