#include "models/cost_tables/sibling_methods.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "engine/base/check.h"
#include "models/cost_tables/method_cost.h"

namespace kvtwin {
namespace {

// The dimension of the model that a term's count is proportional to, besides the step's shape.
enum class TermUnit : uint8_t { kOne, kLayers, kTokens, kKvEntries };

TermUnit unit_of(std::string_view name) {
  using T = MethodTerm;
  static constexpr T kOfOne[] = {T::kLoading,   T::kRecallingHead, T::kRecallingNext,  T::kPageNow,
                                 T::kPageMixed, T::kPageNext,      T::kPageConcurrent, T::kPageLaunched};
  static constexpr T kOfTokens[] = {T::kChunkTokens,  T::kIdleTokens,  T::kHistory,
                                    T::kOwn,          T::kWrapped,     T::kWrappedHistory,
                                    T::kListedTokens, T::kListedPairs, T::kAttentionScore};
  static constexpr T kOfKvEntries[] = {T::kDecodeKvEntries,   T::kHeld,        T::kHeldMore,
                                       T::kChosenFrom,        T::kFilled,      T::kChosenEach,
                                       T::kUnpackedKvEntries, T::kRequantised, T::kListedKvEntries};
  const auto any = [name](const auto& terms) {
    return std::any_of(std::begin(terms), std::end(terms), [name](T term) { return name == name_of(term); });
  };
  if (any(kOfOne)) return TermUnit::kOne;
  if (any(kOfTokens)) return TermUnit::kTokens;
  return any(kOfKvEntries) ? TermUnit::kKvEntries : TermUnit::kLayers;
}

// Time in which the host starts one layer's kernels one by one, beyond their own, us: the median over numbers
// of requests. 0: not measured.
double launch_us(const MeasuredDevice& device, const Catalog& catalog) {
  for (const MeasuredTable& table : device.tables) {
    const Result<LlmSpec> llm = catalog.llm(table.shape);
    if (table.operation != "launched host" || !llm) continue;
    std::vector<double> us;
    for (const Measured& one : table.at) us.push_back(one.us);
    return measured_of(us).us / llm->layers;
  }
  return 0;
}

// Limits on the ratio of two hosts: a table beyond them is invalid.
constexpr double kHostLeast = 0.5, kHostMost = 2;

// The time that the host of `target` takes, relative to that of `source`. 1: one of them was not measured.
double host_ratio(const MeasuredDevice& source, const MeasuredDevice& target, const Catalog& catalog) {
  const double from = launch_us(source, catalog), to = launch_us(target, catalog);
  return from > 0 && to > 0 ? std::clamp(to / from, kHostLeast, kHostMost) : 1;
}

}  // namespace

MeasuredMethod method_of_host(MeasuredMethod method, double ratio) {
  for (MeasuredMethod::Term& term : method.terms)
    if (unit_of(term.of) != TermUnit::kOne) term.us *= ratio;
  return method;
}

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

MeasuredMethod method_of_model(MeasuredMethod method, const LlmSpec& from, const LlmSpec& to) {
  const auto ratio = [](uint32_t target, uint32_t source) { return static_cast<double>(target) / source; };
  const double layers = ratio(to.layers, from.layers);
  const double by_unit[] = {1, layers, layers * ratio(to.query_heads, from.query_heads),
                            layers * ratio(to.kv_heads, from.kv_heads)};
  for (MeasuredMethod::Term& term : method.terms) term.us *= by_unit[static_cast<size_t>(unit_of(term.of))];
  method.model = to.name;
  return method;
}

std::optional<SiblingMethod> sibling_method(const std::string& folder, const MeasuredDevice& device,
                                            const std::string& name, const LlmSpec& llm,
                                            const Catalog& catalog) {
  std::vector<MeasuredMethod> same, derived;
  std::vector<std::string> same_gpus, derived_gpus, models;
  const auto once = [](const std::string& one, std::vector<std::string>* all) {
    if (std::find(all->begin(), all->end(), one) == all->end()) all->push_back(one);
  };
  const auto take = [&](const MeasuredDevice& other) {
    for (const MeasuredMethod& method : other.methods) {
      if (method.name != name) continue;
      const MeasuredMethod here = method_of_host(method, host_ratio(other, device, catalog));
      if (method.model == llm.name) {
        same.push_back(here), once(other.gpu, &same_gpus);
      } else if (const Result<LlmSpec> from = catalog.llm(method.model); from) {
        derived.push_back(method_of_model(here, *from, llm));
        once(other.gpu, &derived_gpus), once(method.model, &models);
      }
    }
  };
  for (const std::string& file : profile_files(folder)) {
    const Result<MeasuredDevice> other = load_measured_device(file);
    if (other && other->sm_count == device.sm_count) take(*other);
  }
  if (same.empty() && derived.empty()) take(device);  // a profile outside the folder, of another model
  if (!same.empty()) return SiblingMethod{mean_of_calibrations(same), same_gpus, {}};
  if (!derived.empty()) return SiblingMethod{mean_of_calibrations(derived), derived_gpus, models};
  return {};
}

}  // namespace kvtwin
