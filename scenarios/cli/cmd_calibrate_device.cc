// kvtwin calibrate device: measures this GPU's step times and writes the file that a scenario's cost.profile
// names.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <ctime>
#include <memory>
#include <string>
#include <utility>

#include "models/catalog/catalog.h"
#include "models/cost_tables/measured_device.h"
#include "scenarios/cli/cli.h"
#ifdef KVTWIN_HAVE_CUDA
#include "engine/calibrate/anchor_device.h"
#include "engine/calibrate/calibrate_device.h"
#include "engine/calibrate/calibrate_formats.h"
#endif

namespace kvtwin {
namespace {

struct DeviceArguments {
  std::string out, model = "llama-3.1-8b", commit, anchors, formats;
  uint32_t page_tokens = 16;
  bool quick = false, quiet = false, rescale = false;
};

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
  size_t points = 0;
  for (const MeasuredTable& table : device.tables) points += table.rows.size();
  out += fmt::format("{} tables of {} sizes\n\n  {:<50}{:>12}{:>10}{:>10}  unit\n", device.tables.size(),
                     points, "", "median", "p10", "p90");
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

int run_device(const DeviceArguments& arguments) {
  if (arguments.page_tokens < 16 || arguments.page_tokens > 1024 || arguments.page_tokens % 16 != 0)
    return complain(
        {"--page-tokens", fmt::format("is {}", arguments.page_tokens), "16 to 1,024, a multiple of 16"});
  Result<LlmSpec> llm = Catalog().llm(arguments.model);
  if (!llm) return complain(llm.error());
  cuda::CalibrationRequest request;
  request.llm = *llm, request.page_tokens = arguments.page_tokens, request.quick = arguments.quick;
  request.build =
      arguments.commit.empty() ? KVTWIN_VERSION : fmt::format("{}+{}", KVTWIN_VERSION, arguments.commit);
  request.date = today();
  if (!arguments.quiet) request.progress = [](const std::string& text) { fmt::print(stderr, "{}\n", text); };
  if (!arguments.anchors.empty()) return run_anchors(arguments, request);
  Result<MeasuredDevice> device;
  if (arguments.formats.empty()) {
    device = cuda::calibrate_device(request);
  } else {
    device = load_measured_device(arguments.formats);
    if (!device) return complain(device.error());
    device = cuda::with_formats(request, std::move(*device));
  }
  if (!device) return complain(device.error(), kExitNoBackend);
  const std::string text = measured_device_textproto(*device);
  if (arguments.out.empty()) {
    fmt::print("{}", text);
    return kExitDone;
  }
  if (Result<void> ok = write_text(arguments.out, text); !ok) return complain(ok.error(), kExitEnvironment);
  fmt::print("{}\nwritten: {}   (cost.profile of a scenario)\n", summary_of(*device), arguments.out);
  return kExitDone;
}

#else

int run_device(const DeviceArguments&) {
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
  command->add_flag("--rescale", arguments->rescale);
  command->add_flag("--quick", arguments->quick);
  command->add_flag("--quiet", arguments->quiet);
  command->callback([=] { *status = run_device(*arguments); });
}

}  // namespace kvtwin
