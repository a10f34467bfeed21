// kvtwin calibrate device: measures this GPU's step times and writes the file that a scenario's cost.profile
// names.

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/catalog/catalog.h"
#include "models/cost_tables/measured_device.h"
#include "models/cost_tables/other_operations.h"
#include "models/cost_tables/thin_tables.h"
#include "models/weights/weights.h"
#include "scenarios/cli/cli.h"
#include "scenarios/load/shipped.h"
#include "scenarios/validate/operation_calibration.h"
#include "scenarios/validate/recordings.h"
#ifdef KVTWIN_HAVE_CUDA
#include "engine/calibrate/anchor_device.h"
#include "engine/calibrate/calibrate_device.h"
#include "engine/calibrate/calibrate_formats.h"
#include "engine/cuda/device/device_facts.h"
#endif

namespace kvtwin {
namespace {

// Whose runs the operations of methods are measured on, for all models of a GPU.
constexpr char kReferenceModel[] = "llama-3.1-8b";

struct DeviceArguments {
  std::string out, model = kReferenceModel, commit, anchors, formats, operations, operations_from, recorded,
                   keep;
  std::vector<std::string> scenarios;
  uint32_t page_tokens = 16;
  bool quick = false, quiet = false, rescale = false;
};

namespace fs = std::filesystem;

int write_device(const DeviceArguments& arguments, const MeasuredDevice& device, const std::string& summary) {
  const std::string text = measured_device_textproto(device);
  if (arguments.out.empty()) {
    fmt::print("{}", text);
    return kExitDone;
  }
  if (Result<void> ok = write_text(arguments.out, text); !ok) return complain(ok.error(), kExitEnvironment);
  fmt::print("{}\nwritten: {}   (cost.profile of a scenario)\n", summary, arguments.out);
  return kExitDone;
}

// The shipped scenarios whose steps have the operations of all methods.
std::vector<std::string> operation_scenarios() {
  std::vector<std::string> out;
  std::error_code failed;
  const fs::path folder = fs::path(path_of_shipped("suites/calibration/quest")).parent_path();
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    if (at->path().extension() == ".textproto") out.push_back(at->path().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

// Measures the operations of methods with the device's model. The exit status.
int measure_operations(const DeviceArguments& arguments, MeasuredDevice* device) {
  OperationCalibrationRequest request;
  request.scenarios = arguments.scenarios.empty() ? operation_scenarios() : arguments.scenarios;
  request.record = arguments.recorded.empty();
  if (request.record) {
    if (Result<void> ok = check_can_record("kvtwin calibrate device"); !ok)
      return complain(ok.error(), kExitNoBackend);
  }
  request.sets = {"model.name=" + device->model};
  request.work = (fs::temp_directory_path() / fmt::format("kvtwin-operations-{}", getpid())).string();
  request.recordings = !request.record          ? arguments.recorded
                       : arguments.keep.empty() ? request.work + "/runs"
                                                : arguments.keep;
  std::error_code ignored;
  for (const std::string& folder : {request.work, request.recordings})
    fs::create_directories(folder, ignored);
  if (!arguments.quiet) request.progress = [](const std::string& text) { fmt::print(stderr, "{}\n", text); };
  Errors failed;
  Result<MeasuredDevice> found = make_error("", "");
  if (Result<void> ok = take_gpu_of(request.recordings, request.record); !ok) {
    found = tl::unexpected<Error>(ok.error());
  } else {
    found = calibrate_operations(request, std::move(*device), &failed);
  }
  fs::remove_all(request.work, ignored);
  if (!found) return complain(found.error());
  *device = std::move(*found);
  for (const Error& error : failed) fmt::print(stderr, "{}\n", error.text());
  return kExitDone;
}

int thin(MeasuredDevice* device) {
  const Result<LlmSpec> llm = Catalog().llm(device->model);
  if (!llm) return complain(llm.error());
  thin_tables(llm->layers, kPointsMax, device);
  return kExitDone;
}

// Only the operations, added to a file of this GPU.
int run_operations(const DeviceArguments& arguments) {
  Result<MeasuredDevice> device = load_measured_device(arguments.operations);
  if (!device) return complain(device.error());
  // Before operations are measured, because they are the difference to the tables.
  if (const int status = thin(&*device); status != kExitDone) return status;
  if (const int status = measure_operations(arguments, &*device); status != kExitDone) return status;
  return write_device(arguments, *device, operations_table(*device->operations));
}

// The model to measure. Errors: pages or the model are none that the engine can have.
Result<LlmSpec> model_of(const DeviceArguments& arguments) {
  if (arguments.page_tokens < 16 || arguments.page_tokens > 1024 || arguments.page_tokens % 16 != 0)
    return make_error("--page-tokens", fmt::format("is {}", arguments.page_tokens),
                      "16 to 1,024, a multiple of 16");
  Result<LlmSpec> llm = Catalog().llm(arguments.model);
  if (!llm) return llm;
  if (Result<void> ok = check_dense(*llm, "--model"); !ok) return tl::unexpected<Error>(ok.error());
  return llm;
}

#ifdef KVTWIN_HAVE_CUDA

std::string today() {
  char text[32] = {};
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  std::strftime(text, sizeof text, "%Y-%m-%d", gmtime_r(&now, &parts));
  return text;
}

std::string summary_of(const MeasuredDevice& device) {
  std::string out =
      fmt::format("{}, driver {}, CUDA {}, SM clock {} to {} MHz, {}\n", device.gpu, device.driver,
                  device.cuda, device.sm_mhz_min, device.sm_mhz_max, device.model);
  out += fmt::format("{} points of curves\n\n  {:<50}{:>12}{:>10}{:>10}  unit\n", points_of(device), "",
                     "median", "p10", "p90");
  for (const MeasuredFigure& one : device.figures)
    out += fmt::format("  {:<50}{:>12.2f}{:>10.2f}{:>10.2f}  {}\n", one.name, one.value, one.p10, one.p90,
                       one.unit);
  out += fmt::format("\n  {:<50}{:>12}{:>12}{:>9}\n", "held-out step", "measured us", "predicted", "error");
  std::vector<double> errors;
  for (const HeldOutStep& step : device.held_out) {
    out += fmt::format("  {:<50}{:>12.1f}{:>12.1f}{:>8.2f}%\n", step.step, step.measured_us,
                       step.predicted_us, 100 * step.error());
    errors.push_back(100 * std::abs(step.error()));
  }
  if (errors.empty()) return out;
  const Measured spread = measured_of(errors);
  return out + fmt::format("  interpolation error: median {:.2f} %, nine of ten within {:.2f} %\n", spread.us,
                           spread.p90);
}

constexpr uint32_t kDecodeRowsMax =
    256;  // calibrate_device() measures decode steps of up to this many requests

// Exit status: done, or failed if the anchors are rejected, or must be rescaled without permission to do so.
int run_anchors(const DeviceArguments& arguments, const cuda::CalibrationRequest& request) {
  const Result<MeasuredDevice> profile = load_measured_device(arguments.anchors);
  if (!profile) return complain(profile.error());
  const Result<std::vector<Anchor>> anchors = cuda::measure_anchors(request, *profile);
  if (!anchors) return complain(anchors.error(), kExitNoBackend);
  fmt::print("{}", drift_table(*anchors));
  const Drift drift = drift_of(*anchors);
  const DriftVerdict verdict = verdict_of(*anchors);
  const bool good =
      verdict == DriftVerdict::kAccepted || (verdict == DriftVerdict::kRescale && arguments.rescale);
  if (!good) return kExitNo;
  if (arguments.out.empty()) return kExitDone;
  const MeasuredDevice device =
      verdict == DriftVerdict::kAccepted ? *profile : rescaled(*profile, drift, kDecodeRowsMax);
  if (Result<void> ok = write_text(arguments.out, measured_device_textproto(device)); !ok)
    return complain(ok.error(), kExitEnvironment);
  fmt::print("written: {}\n", arguments.out);
  return kExitDone;
}

// The operations of methods that are not to be measured: those of the file that was named, or, for another
// model than the reference, of a shipped file of this GPU. Errors: the file is of another GPU, or has none.
// REQUIRES: check_gpu().
Result<std::optional<MeasuredOperations>> known_operations(const DeviceArguments& arguments) {
  if (arguments.quick) return std::optional<MeasuredOperations>();  // its file has no operations
  const std::string gpu = cuda::device_facts().gpu;
  std::string file = arguments.operations_from;
  if (file.empty() && arguments.model != kReferenceModel)
    file = profile_with_operations((fs::path(default_models_dir()) / "measured").string(), gpu);
  if (file.empty()) return std::optional<MeasuredOperations>();
  Result<MeasuredOperations> found = operations_of_profile(file, gpu);
  if (!found) return tl::unexpected<Error>(found.error());
  if (!arguments.quiet) fmt::print(stderr, "operations of methods: from {}\n", file);
  return std::optional(std::move(*found));
}

// All tables of the device, and the operations of methods. Exit status: done, or no GPU.
int run_whole(const DeviceArguments& arguments, const cuda::CalibrationRequest& request) {
  if (Result<void> ok = cuda::check_gpu(); !ok) return complain(ok.error(), kExitNoBackend);
  Result<std::optional<MeasuredOperations>> known = known_operations(arguments);
  if (!known) return complain(known.error());
  Result<MeasuredDevice> device = cuda::calibrate_device(request);
  if (!device) return complain(device.error(), kExitNoBackend);
  std::string summary = summary_of(*device);
  if (arguments.quick) return write_device(arguments, *device, summary);
  if (const int status = thin(&*device); status != kExitDone) return status;
  device->operations = std::move(*known);
  if (!device->operations) {
    if (const int status = measure_operations(arguments, &*device); status != kExitDone) return status;
  }
  return write_device(arguments, *device, summary + "\n" + operations_table(*device->operations));
}

int run_formats(const DeviceArguments& arguments, const cuda::CalibrationRequest& request) {
  Result<MeasuredDevice> device = load_measured_device(arguments.formats);
  if (!device) return complain(device.error());
  device = cuda::with_formats(request, std::move(*device));
  if (!device) return complain(device.error(), kExitNoBackend);
  return write_device(arguments, *device, summary_of(*device));
}

int run_device(const DeviceArguments& arguments, const LlmSpec& llm) {
  cuda::CalibrationRequest request;
  request.llm = llm, request.page_tokens = arguments.page_tokens, request.quick = arguments.quick;
  request.build =
      arguments.commit.empty() ? KVTWIN_VERSION : fmt::format("{}+{}", KVTWIN_VERSION, arguments.commit);
  request.date = today();
  if (!arguments.quiet) request.progress = [](const std::string& text) { fmt::print(stderr, "{}\n", text); };
  if (!arguments.anchors.empty()) return run_anchors(arguments, request);
  return arguments.formats.empty() ? run_whole(arguments, request) : run_formats(arguments, request);
}

#else

int run_device(const DeviceArguments&, const LlmSpec&) {
  return complain({"kvtwin calibrate device", "this build has no CUDA backend",
                   "configure with nvcc on PATH and -DKVTWIN_CUDA=ON, on a machine with the GPU"},
                  kExitNoBackend);
}

#endif

}  // namespace

void add_calibrate_device_command(CLI::App* calibrate, int* status) {
  CLI::App* const command = calibrate->add_subcommand("device");
  const auto arguments = std::make_shared<DeviceArguments>();
  command->add_option("--out", arguments->out);
  command->add_option("--model", arguments->model);
  command->add_option("--page-tokens", arguments->page_tokens);
  command->add_option("--commit", arguments->commit);
  command->add_option("--anchors", arguments->anchors);
  command->add_option("--formats", arguments->formats);
  command->add_option("--operations", arguments->operations);
  command->add_option("--operations-from", arguments->operations_from);
  command->add_option("--recorded", arguments->recorded);
  command->add_option("--keep", arguments->keep);
  command->add_option("--scenario", arguments->scenarios)->expected(1)->allow_extra_args(false)->take_all();
  command->add_flag("--rescale", arguments->rescale);
  command->add_flag("--quick", arguments->quick);
  command->add_flag("--quiet", arguments->quiet);
  command->callback([=] {
    if (!arguments->operations.empty()) {
      *status = run_operations(*arguments);
      return;
    }
    const Result<LlmSpec> llm = model_of(*arguments);
    *status = llm ? run_device(*arguments, *llm) : complain(llm.error());
  });
}

}  // namespace kvtwin
