#include "scenarios/validate/operation_calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "engine/recorder/recorder_replay.h"
#include "models/files/textproto.h"
#include "scenarios/app/compose.h"
#include "scenarios/app/compose_retrieving.h"
#include "scenarios/app/method_work.h"
#include "scenarios/app/results.h"
#include "scenarios/validate/open_loop.h"
#include "scenarios/validate/operation_fit.h"
#include "scenarios/validate/recordings.h"
#include "scenarios/validate/run_validation.h"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

// The first steps of a run include first-use costs of kernels and memory.
constexpr size_t kFirstSteps = 2;

// Sums for the host's time between steps: a line over the requests that sample.
struct HostSums {
  double steps = 0, requests = 0, us = 0, squares = 0, products = 0;

  void add(const PricedStep& one) {
    const double x = one.samples;
    steps += 1, requests += x, us += one.host, squares += x * x, products += x * one.host;
  }
  void add(const HostSums& more) {
    steps += more.steps, requests += more.requests, us += more.us;
    squares += more.squares, products += more.products;
  }
  // The figures that compose() reads. Recordings without the host's time leave those that are there.
  void learn(MeasuredDevice* device) const {
    if (us == 0) return;
    const double spread = steps * squares - requests * requests;
    const double each = spread > 0 ? std::max(0.0, (steps * products - requests * us) / spread) : 0;
    const double fixed = std::max(0.0, (us - each * requests) / steps);
    for (const auto& [name, value] :
         {std::pair("host between steps", fixed), std::pair("host between steps, a request", each)}) {
      std::erase_if(device->figures, [&](const MeasuredFigure& figure) { return figure.name == name; });
      device->figures.push_back({name, "us", value, value, value});
    }
  }
};

struct OperationSteps {
  std::vector<OperationSample> samples;  // of methods
  HostSums host;                         // of all

  void add(const OperationSteps& more) {
    samples.insert(samples.end(), more.samples.begin(), more.samples.end());
    host.add(more.host);
  }
};

class OperationReader {
 public:
  OperationReader(const OperationCalibrationRequest& request, const MeasuredDevice& device)
      : request_(request), device_(device) {}

  // OperationSteps of all scenarios. One that cannot be run or read is noted in `failed`.
  Result<OperationSteps> all(bool record, Errors* failed) const {
    Result<void> ok = write_files(request_.work, {{kProfile, measured_device_textproto(device_)}});
    if (!ok) return tl::unexpected<Error>(ok.error());
    OperationSteps out;
    size_t read = 0;
    for (const std::string& path : request_.scenarios) {
      const std::string name = fs::path(path).stem().string();
      const Result<OperationSteps> steps = of(path, name, record);
      if (steps) {
        out.add(*steps), ++read;
        continue;
      }
      if (request_.progress) request_.progress(fmt::format("{}: {}", name, steps.error().text()));
      if (failed != nullptr) failed->push_back(steps.error());
    }
    if (read == 0 && failed != nullptr && !failed->empty()) return tl::unexpected<Error>(failed->front());
    return out;
  }

 private:
  static constexpr char kProfile[] = "profile.textproto";

  Result<OperationSteps> of(const std::string& path, const std::string& name, bool record) const {
    std::vector<std::string> sets = request_.sets;
    sets.push_back("cost.profile=" + (fs::absolute(request_.work) / kProfile).string());
    const tl::expected<Scenario, Errors> scenario = load_scenario(path, sets);
    if (!scenario) return tl::unexpected<Error>(scenario.error().front());
    const std::string folder = fmt::format("{}/{}", request_.recordings, name);
    std::error_code ignored;
    if (record && !fs::exists(folder + "/1/log.binpb", ignored)) {
      const RecordRequest made{path, sets, "cuda", "wall", 1, folder, request_.work, request_.progress};
      if (Result<void> ok = kvtwin::record(made, name); !ok) return tl::unexpected<Error>(ok.error());
    }
    const Result<std::vector<Recording>> recordings = read_recordings(folder);
    if (!recordings) return tl::unexpected<Error>(recordings.error());
    tl::expected<Composed, Errors> composed = compose(*scenario);
    if (!composed) return tl::unexpected<Error>(composed.error().front());
    OperationSteps out;
    for (const Recording& recording : *recordings) {
      const RetrievalSetup retrieving = make_retrieving(*scenario, *composed);
      OpenLoop open(&recording.log, step_pricing(*composed, retrieving, recording), {});
      const Result<Replayed> replayed = replay(name, recording.log, {&open});
      if (!replayed) return tl::unexpected<Error>(replayed.error());
      if (!replayed->same)
        return make_error(folder,
                          fmt::format("is not a run of the present {}: {}", path, replayed->difference),
                          "record it again");
      add(open.steps(), adds_operations(composed->options.engines.front()), &out);
    }
    return out;
  }

  static void add(const std::vector<PricedStep>& steps, bool method, OperationSteps* out) {
    for (const PricedStep& one : steps) out->host.add(one);
    for (size_t i = kFirstSteps; method && i < steps.size(); ++i) {
      const PricedStep& one = steps[i];
      const bool makes_graph =
          !one.chunks && (one.graph == GraphUse::kCaptured || one.graph == GraphUse::kInstantiated);
      out->samples.push_back({one.counts, one.measured - one.host, one.dense, one.attention, makes_graph});
    }
  }

  const OperationCalibrationRequest& request_;
  const MeasuredDevice& device_;
};

}  // namespace

Result<MeasuredDevice> calibrate_operations(const OperationCalibrationRequest& request, MeasuredDevice device,
                                            Errors* failed) {
  if (Result<void> ok = check_sets_read(request.scenarios, request.sets, "cuda", "wall"); !ok)
    return tl::unexpected<Error>(ok.error());
  device.operations.emplace();  // else steps of methods have rooflines
  Result<OperationSteps> steps = OperationReader(request, device).all(request.record, failed);
  if (!steps) return tl::unexpected<Error>(steps.error());
  steps->host.learn(&device);
  device.operations = fit_operations(steps->samples);
  return device;
}

std::string operations_table(const MeasuredOperations& operations) {
  std::string out = fmt::format("  {:<50}{:>14}\n", "family of operations", "ns each");
  for (const MeasuredOperations::Price& one : operations.prices)
    out += fmt::format("  {:<50}{:>14.4g}\n", one.of, one.ns);
  return out + fmt::format("  {} steps; on others: median {:.2f} %, nine of ten within {:.2f} %\n",
                           operations.steps, 100 * operations.error_median, 100 * operations.error_p90);
}

}  // namespace kvtwin
