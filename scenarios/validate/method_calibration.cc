#include "scenarios/validate/method_calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "engine/methods/registry.h"
#include "engine/recorder/recorder_replay.h"
#include "models/files/textproto.h"
#include "scenarios/app/compose.h"
#include "scenarios/app/compose_retrieving.h"
#include "scenarios/app/results.h"
#include "scenarios/validate/method_fit.h"
#include "scenarios/validate/open_loop.h"
#include "scenarios/validate/recordings.h"
#include "scenarios/validate/run_validation.h"
#include "scenarios/validate/served_fit.h"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

// The first steps of a run include first-use costs of kernels and memory.
constexpr size_t kFirstSteps = 2;

std::string stem_of(const std::string& path) { return fs::path(path).stem().string(); }

constexpr char kDense[] = "none/all/paged";

struct Steps {
  std::string method, model;
  std::vector<std::string> paths;
  std::vector<MethodSample> samples;
  std::vector<PricedStep> first;  // the first steps of each run
  std::vector<PricedStep> dense;  // all steps of runs without a method
};

Result<Steps> steps_of(const MethodCalibrationRequest& request, const std::string& path) {
  std::vector<std::string> sets = request.sets;
  sets.push_back("cost.profile=" + fs::absolute(request.profile).string());
  const tl::expected<Scenario, Errors> scenario = load_scenario(path, sets);
  if (!scenario) return tl::unexpected<Error>(scenario.error().front());
  const std::string name = stem_of(path), folder = fmt::format("{}/{}", request.recordings, name);
  std::error_code ignored;
  if (request.record && !fs::exists(folder + "/1/log.binpb", ignored)) {
    const RecordRequest recorded{path, sets, "cuda", "wall", 1, folder, request.work, request.progress};
    if (Result<void> ok = record(recorded, name); !ok) return tl::unexpected<Error>(ok.error());
  }
  const Result<std::vector<Recording>> recordings = read_recordings(folder);
  if (!recordings) return tl::unexpected<Error>(recordings.error());
  tl::expected<Composed, Errors> composed = compose(*scenario);
  if (!composed) return tl::unexpected<Error>(composed.error().front());
  const PolicySet& set = composed->options.engines.front().policies;
  Steps out{method_name(set), composed->llm.name, {path}, {}, {}, {}};
  for (const Recording& recording : *recordings) {
    const RetrievalSetup retrieving = make_retrieving(*scenario, *composed);
    OpenLoop open(&recording.log, step_pricing(*composed, retrieving, recording), {});
    const Result<Replayed> replayed = replay(name, recording.log, {&open});
    if (!replayed) return tl::unexpected<Error>(replayed.error());
    if (!replayed->same)
      return make_error(folder, fmt::format("is not a run of the present {}: {}", path, replayed->difference),
                        "record it again");
    const std::vector<PricedStep> steps = open.steps();
    if (out.method == kDense) out.dense.insert(out.dense.end(), steps.begin(), steps.end());
    if (!steps.empty()) out.first.push_back(steps.front());
    for (size_t i = kFirstSteps; i < steps.size(); ++i)
      out.samples.push_back({steps[i].counts, steps[i].measured, steps[i].dense, steps[i].attention});
  }
  return out;
}

bool has(const std::vector<MethodSample>& samples, MethodTerm term) {
  return std::any_of(samples.begin(), samples.end(),
                     [term](const MethodSample& one) { return one.counts[static_cast<size_t>(term)] > 0; });
}

// Sets the first-step term: the median of the first steps' excess over their prices.
void add_first_step(const std::vector<PricedStep>& first, MeasuredMethod* method) {
  std::vector<double> more;
  for (const PricedStep& step : first) {
    const double priced = step.dense + method_sum(step.counts, prices_of(*method));
    more.push_back(std::max(0.0, step.measured - priced));
  }
  if (!more.empty() && measured_of(more).us > 0)
    method->terms.push_back({name_of(MethodTerm::kFirstStep), measured_of(more).us});
}

using ByMethod = std::map<std::pair<std::string, std::string>, Steps>;

// Steps of all scenarios. One that cannot be run or read is noted in `failed`, and the others count without
// it. Errors: none can.
Result<ByMethod> all_steps(const MethodCalibrationRequest& request, Errors* failed) {
  ByMethod out;
  for (const std::string& path : request.scenarios) {
    Result<Steps> steps = steps_of(request, path);
    if (!steps) {
      if (request.progress) request.progress(fmt::format("{}: {}", stem_of(path), steps.error().text()));
      failed->push_back(steps.error());
      continue;
    }
    Steps& all = out[{steps->method, steps->model}];
    all.paths.push_back(path);
    all.samples.insert(all.samples.end(), steps->samples.begin(), steps->samples.end());
    all.first.insert(all.first.end(), steps->first.begin(), steps->first.end());
    all.dense.insert(all.dense.end(), steps->dense.begin(), steps->dense.end());
  }
  if (out.empty() && !failed->empty()) return tl::unexpected<Error>(failed->front());
  return out;
}

Result<ByMethod> steps_by(const MeasuredDevice& device, const std::vector<std::string>& paths,
                          MethodCalibrationRequest request) {
  constexpr char kProfile[] = "profile.textproto";
  if (auto ok = write_files(request.work, {{kProfile, measured_device_textproto(device)}}); !ok)
    return tl::unexpected<Error>(ok.error());
  request.profile = fmt::format("{}/{}", request.work, kProfile), request.record = false;
  request.scenarios = paths;
  Errors failed;
  Result<ByMethod> out = all_steps(request, &failed);
  if (!failed.empty()) return tl::unexpected<Error>(failed.front());
  return out;
}

// A method's price is the difference to the dense engine. Where dense runs are given, the served time of
// dense steps is fitted first and all steps are priced again.
Result<void> settle_dense(const MethodCalibrationRequest& request, ByMethod* steps, MeasuredDevice* device) {
  std::vector<std::string> dense, others;
  for (const auto& [key, one] : *steps) {
    std::vector<std::string>& to = key.first == kDense ? dense : others;
    to.insert(to.end(), one.paths.begin(), one.paths.end());
  }
  if (dense.empty()) return {};
  forget_served(device);
  const Result<ByMethod> served = steps_by(*device, dense, request);
  if (!served) return tl::unexpected<Error>(served.error());
  for (const auto& [key, one] : *served) learn_served(one.dense, device);
  Result<ByMethod> again = steps_by(*device, others, request);
  if (!again) return tl::unexpected<Error>(again.error());
  *steps = std::move(*again);
  return {};
}

// us per thousand pages: fourteen times an H200's time to read their summaries, for the 32 layers of an 8B
// model.
constexpr double kChosenFromMost = 400;
constexpr auto kChosenFrom = static_cast<size_t>(MethodTerm::kChosenFrom);

// The samples exclude first steps.
MethodCounts known_before() {
  MethodCounts known = learn_all();
  known[static_cast<size_t>(MethodTerm::kFirstStep)] = 0;
  return known;
}

// The number of candidate pages correlates with recalls and decodes, so that a fit per method is
// ill-conditioned. The same kernels score the pages of all methods: one price with the least error over all
// methods is searched in two rounds of trials.
double chosen_from_price(const ByMethod& by_method, const std::string& model) {
  constexpr int kTrials = 10;
  double low = 0, high = kChosenFromMost, best = 0, least = -1;
  for (int round = 0; round < 2; ++round) {
    const double step = (high - low) / kTrials;
    for (int i = 0; i <= kTrials; ++i) {
      double error = 0;
      for (const auto& [key, steps] : by_method) {
        if (key.second != model || !has(steps.samples, MethodTerm::kChoosing)) continue;
        MethodCounts known = known_before();
        known[kChosenFrom] = low + i * step;
        error += choosing_error(steps.samples, fit_method(key.first, model, steps.samples, known));
      }
      if (least < 0 || error < least) best = low + i * step, least = error;
    }
    low = std::max(0.0, best - step), high = best + step;
  }
  return best;
}

}  // namespace

Result<MeasuredDevice> calibrate_methods(const MethodCalibrationRequest& request, Errors* failed) {
  Result<MeasuredDevice> device = load_measured_device(request.profile);
  if (!device) return tl::unexpected<Error>(device.error());
  if (Result<void> ok = check_sets_read(request.scenarios, request.sets, "cuda", "wall"); !ok)
    return tl::unexpected<Error>(ok.error());
  Result<ByMethod> found = all_steps(request, failed);
  if (!found) return tl::unexpected<Error>(found.error());
  ByMethod& by_method = *found;
  if (Result<void> ok = settle_dense(request, &by_method, &*device); !ok)
    return tl::unexpected<Error>(ok.error());
  std::map<std::string, double> chosen_from;  // by model
  for (const auto& [key, steps] : by_method) {
    MethodCounts known = known_before();
    if (has(steps.samples, MethodTerm::kChoosing)) {
      const auto shared = chosen_from.find(key.second);
      known[kChosenFrom] =
          shared != chosen_from.end() ? shared->second : chosen_from_price(by_method, key.second);
      chosen_from[key.second] = known[kChosenFrom];
    }
    MeasuredMethod fitted = fit_method(key.first, key.second, steps.samples, known);
    add_first_step(steps.first, &fitted);
    const auto same = std::find_if(
        device->methods.begin(), device->methods.end(),
        [&](const MeasuredMethod& one) { return one.name == fitted.name && one.model == fitted.model; });
    if (same != device->methods.end()) {
      *same = std::move(fitted);
    } else {
      device->methods.push_back(std::move(fitted));
    }
  }
  return device;
}

std::string methods_table(const MeasuredDevice& device) {
  std::string out = fmt::format("  {:<34}{:>7}  {:>8}{:>8}  us each\n", "method", "steps", "median", "p90");
  for (const MeasuredMethod& one : device.methods) {
    std::string terms;
    for (const MeasuredMethod::Term& term : one.terms)
      terms += fmt::format("{}{} {:.2f}", terms.empty() ? "" : ", ", term.of, term.us);
    out += fmt::format("  {:<34}{:>7}  {:>7.2f}%{:>7.2f}%  {}\n", one.name, one.steps, 100 * one.error_median,
                       100 * one.error_p90, terms);
  }
  return out;
}

}  // namespace kvtwin
