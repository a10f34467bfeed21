#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/plural.h"
#include "scenarios/app/compose.h"
#include "scenarios/cli/cli.h"
#include "scenarios/output/result_folder.h"
#include "scenarios/plan/plan.h"
#include "scenarios/sweep/pool.h"

namespace kvtwin {
namespace {

struct PlanArguments : PlanWords {
  std::string format = "table";
  uint32_t jobs = 0;
  bool quiet = false;
};

int plan(const PlanArguments& arguments) {
  const Result<OutputFormat> format = parse_format(arguments.format);
  if (!format) return complain(format.error());
  if (*format == OutputFormat::kCsv)
    return complain(Error{"--format", "a plan cannot be written as CSV", "table, json or jsonl"});
  const Result<PlanSpec> spec = plan_spec(arguments);
  if (!spec) return complain(spec.error());
  if (!can_simulate()) {
    return complain(Error{arguments.scenario, "this build has no simulated backend",
                          "install libsimgrid-dev and configure again"},
                    kExitNoBackend);
  }
  PlanRun how;
  how.dir = arguments.out;
  how.program = own_program();
  how.at_once = arguments.jobs > 0 ? arguments.jobs : std::max(1u, std::thread::hardware_concurrency());
  how.warn = [](const std::string& text) { fmt::print(stderr, "{}\n", text); };
  const bool shown = !arguments.quiet && isatty(STDERR_FILENO) == 1;
  if (shown) how.progress = [](uint64_t ran) { fmt::print(stderr, "\r\033[Kplan: {} runs", ran); };
  const Result<Plan> made = make_plan(*spec, how);
  if (shown) fmt::print(stderr, "\r\033[K");
  if (!made) return complain(made.error());
  if (Result<void> ok =
          write_files(arguments.out, {{"plan.json", plan_file(*spec, *made, plan_command(arguments))}});
      !ok)
    return complain(ok.error(), kExitEnvironment);
  fmt::print("{}", format_plan(*spec, *made, *format));
  if (!arguments.quiet)
    fmt::print(stderr, "{} {}, {} {} now; in {}\n", made->candidates.size(),
               plural(made->candidates.size(), "candidate"), made->runs, plural(made->runs, "run"),
               arguments.out);
  if (made->not_judged()) return kExitInvalidInput;
  return made->best ? kExitDone : kExitNo;
}

}  // namespace

void add_plan_command(CLI::App& app, int* status) {
  CLI::App* const command = app.add_subcommand("plan", "find the cheapest configuration that meets its SLOs");
  command->set_help_flag();
  const auto arguments = std::make_shared<PlanArguments>();
  const auto repeated = [&](const char* name, std::vector<std::string>* into) {
    return command->add_option(name, *into)->expected(1)->allow_extra_args(false)->take_all();
  };
  command->add_option("SCENARIO", arguments->scenario)->required();
  repeated("--slo", &arguments->slos)->required();
  command->add_option("--load", arguments->load)->required();
  command->add_option("--need", arguments->need)->required();
  repeated("--vary", &arguments->vary);
  repeated("--set", &arguments->sets);
  repeated("--loss", &arguments->losses);
  command->add_option("--quality", arguments->quality);
  command->add_option("--seeds", arguments->seeds);
  command->add_option("--out", arguments->out);
  command->add_option("--jobs", arguments->jobs);
  command->add_option("--format", arguments->format);
  command->add_flag("--allow-roofline", arguments->allow_roofline);
  command->add_flag("--quiet", arguments->quiet);
  command->callback([arguments, status] { *status = plan(*arguments); });
}

}  // namespace kvtwin
