// kvtwin calibrate methods: measures what KV methods add to the engine's steps on this GPU, and adds it to
// the device's file.

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "scenarios/cli/cli.h"
#include "scenarios/validate/method_calibration.h"
#include "scenarios/validate/recordings.h"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

struct MethodsArguments {
  MethodCalibrationRequest request;
  std::string recorded, keep, out;
  bool quiet = false;
};

// The profile was written without these scenarios. Runs that were kept are not made again.
int report_failed(const Errors& failed, size_t scenarios) {
  if (failed.empty()) return kExitDone;
  for (const Error& error : failed) fmt::print(stderr, "{}\n", error.text());
  fmt::print(stderr,
             "{} of {} scenarios failed; the profile has nothing new of their methods. The same command runs "
             "only these again.\n",
             failed.size(), scenarios);
  return kExitEnvironment;
}

int run_methods(MethodsArguments arguments) {
  MethodCalibrationRequest& request = arguments.request;
  if (arguments.recorded.empty() == arguments.keep.empty())
    return complain(
        {"kvtwin calibrate methods", "needs one of --recorded and --keep",
         "--keep=DIR runs the scenarios on this GPU and stores the recordings; --recorded=DIR reads them"});
  request.record = arguments.recorded.empty();
  if (request.record) {
    if (Result<void> ok = check_can_record("kvtwin calibrate methods --keep"); !ok)
      return complain(ok.error(), kExitNoBackend);
  }
  request.recordings = request.record ? arguments.keep : arguments.recorded;
  request.work = (fs::temp_directory_path() / fmt::format("kvtwin-methods-{}", getpid())).string();
  std::error_code ignored;
  fs::create_directories(request.work, ignored);
  if (!arguments.quiet) request.progress = [](const std::string& text) { fmt::print(stderr, "{}\n", text); };
  if (Result<void> ok = take_gpu_of(request.recordings, request.record); !ok) return complain(ok.error());
  Errors failed;
  const Result<MeasuredDevice> device = calibrate_methods(request, &failed);
  fs::remove_all(request.work, ignored);
  if (!device) return complain(device.error());
  const std::string text = measured_device_textproto(*device);
  if (arguments.out.empty()) {
    fmt::print("{}", text);
    return report_failed(failed, request.scenarios.size());
  }
  if (Result<void> ok = write_text(arguments.out, text); !ok) return complain(ok.error(), kExitEnvironment);
  fmt::print("{}\nwritten: {}   (cost.profile of a scenario)\n", methods_table(*device), arguments.out);
  return report_failed(failed, request.scenarios.size());
}

}  // namespace

void add_calibrate_methods_command(CLI::App* calibrate, int* status) {
  CLI::App* const command = calibrate->add_subcommand("methods");
  const auto arguments = std::make_shared<MethodsArguments>();
  command->add_option("SCENARIO", arguments->request.scenarios)->required();
  command->add_option("--profile", arguments->request.profile)->required();
  command->add_option("--recorded", arguments->recorded);
  command->add_option("--keep", arguments->keep);
  command->add_option("--out", arguments->out);
  add_repeated(command, "--set", &arguments->request.sets);
  command->add_flag("--quiet", arguments->quiet);
  command->callback([=] { *status = run_methods(*arguments); });
}

}  // namespace kvtwin
