// kvtwin validate: compares a recorded run of a scenario with the simulator's prediction.

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "models/files/textproto.h"
#include "scenarios/app/compose.h"
#include "scenarios/cli/cli.h"
#include "scenarios/validate/recordings.h"
#include "scenarios/validate/run_validation.h"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

struct ValidateArguments {
  ValidateRequest request;
  std::string recorded, out, known, baseline, details, format = "table";
  bool quiet = false, part = false;
};

// A temporary folder, removed on destruction.
class WorkFolder {
 public:
  WorkFolder() : path_(fs::temp_directory_path() / fmt::format("kvtwin-validate-{}", getpid())) {
    std::error_code ignored;
    fs::create_directories(path_, ignored);
  }
  ~WorkFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string path() const { return path_.string(); }

 private:
  const fs::path path_;
};

Result<void> complete(ValidateArguments* arguments) {
  ValidateRequest& request = arguments->request;
  if (arguments->recorded.empty() == arguments->out.empty())
    return make_error(
        "kvtwin validate", "needs one of --recorded and --out",
        "--out=DIR runs the scenarios here and stores the recordings; --recorded=DIR reads them");
  if (request.repeats < 1 || request.repeats > 100)
    return make_error("--repeats", fmt::format("is {}", request.repeats), "1 to 100");
  if (request.backend != "cuda" && request.backend != "cpu")
    return make_error("--backend", fmt::format("is \"{}\"", request.backend),
                      "cuda or cpu: the backend of the real runs");
  if (request.clock != "wall" && request.clock != "virtual")
    return make_error(
        "--clock", fmt::format("is \"{}\"", request.clock),
        "wall: measured step times; virtual: times of the cost model, to compare outcomes only");
  request.record = arguments->recorded.empty();
  request.recordings = request.record ? arguments->out : arguments->recorded;
  if (arguments->known.empty()) return {};
  const Result<std::string> text = read_text_file(arguments->known);
  if (!text) return tl::unexpected<Error>(text.error());
  Result<std::vector<KnownDeviation>> known = parse_known_deviations(*text, arguments->known);
  if (!known) return tl::unexpected<Error>(known.error());
  request.known = std::move(*known);
  return {};
}

int run_validate(ValidateArguments arguments) {
  const Result<OutputFormat> format = parse_format(arguments.format);
  if (!format) return complain(format.error());
  if (*format != OutputFormat::kTable && *format != OutputFormat::kJson)
    return complain(
        {"--format", fmt::format("validate does not write {}", arguments.format), "table or json"});
  if (Result<void> ok = complete(&arguments); !ok) return complain(ok.error());
  if (!can_simulate())
    return complain({"kvtwin validate", "this build has no simulated backend",
                     "install libsimgrid-dev and configure again"},
                    kExitNoBackend);
  if (arguments.request.record && arguments.request.backend == "cuda") {
    if (Result<void> ok = check_can_record("kvtwin validate --out"); !ok)
      return complain(ok.error(), kExitNoBackend);
  }
  const WorkFolder work;
  arguments.request.work = work.path();
  if (Result<void> ok = take_gpu_of(arguments.request.recordings, arguments.request.record); !ok)
    return complain(ok.error());
  if (!arguments.quiet)
    arguments.request.progress = [](const std::string& text) { fmt::print(stderr, "{}\n", text); };
  const Result<Validation> validation = run_validation(arguments.request);
  if (!validation) return complain(validation.error());
  for (const Error& error : validation->failed) fmt::print(stderr, "{}\n", error.text());
  const std::string json = validation_json(*validation);
  if (!arguments.out.empty()) {
    if (Result<void> ok = write_text(arguments.out + "/validation.json", json); !ok)
      return complain(ok.error(), kExitEnvironment);
  }
  if (!arguments.details.empty()) {
    if (Result<void> ok = write_text(arguments.details, validation->details); !ok)
      return complain(ok.error(), kExitEnvironment);
  }
  fmt::print("{}", *format == OutputFormat::kJson ? json : validation_table(*validation));
  if (!validation->failed.empty()) {
    fmt::print(stderr, "{} of {} scenarios were not validated\n", validation->failed.size(),
               arguments.request.scenarios.size());
    return kExitInvalidInput;
  }
  if (arguments.baseline.empty()) return validation->good() ? kExitDone : kExitNo;
  const Result<std::string> before = read_text_file(arguments.baseline);
  if (!before) return complain(before.error());
  const Result<std::vector<std::string>> worse =
      worse_than(*validation, *before, arguments.baseline, arguments.part);
  if (!worse) return complain(worse.error());
  for (const std::string& text : *worse) fmt::print(stderr, "worse than {}: {}\n", arguments.baseline, text);
  bool same = true;
  for (const ScenarioValidation& one : validation->scenarios) {
    for (const ReplayedRun& run : one.replayed) same = same && run.same;
  }
  return worse->empty() && same ? kExitDone : kExitNo;
}

}  // namespace

void add_validate_command(CLI::App& app, int* status) {
  CLI::App* const command = app.add_subcommand("validate");
  const auto arguments = std::make_shared<ValidateArguments>();
  command->add_option("SCENARIO", arguments->request.scenarios)->required();
  command->add_option("--recorded", arguments->recorded);
  command->add_option("--out", arguments->out);
  command->add_option("--repeats", arguments->request.repeats);
  command->add_option("--backend", arguments->request.backend);
  command->add_option("--clock", arguments->request.clock);
  add_repeated(command, "--set", &arguments->request.sets);
  command->add_option("--known", arguments->known);
  command->add_option("--baseline", arguments->baseline);
  command->add_flag("--part", arguments->part);
  command->add_option("--details", arguments->details);
  command->add_option("--format", arguments->format);
  command->add_flag("--quiet", arguments->quiet);
  command->callback([arguments, status] { *status = run_validate(*arguments); });
}

}  // namespace kvtwin
