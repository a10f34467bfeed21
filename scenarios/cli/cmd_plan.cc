#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
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

// "plan: round 3, 5 of 12 runs; 31 made, 12 found, 45 s": one rewritten line on a terminal; elsewhere a line
// at the start and every few seconds.
class PlanProgressLine {
 public:
  explicit PlanProgressLine(bool quiet) : quiet_(quiet), terminal_(isatty(STDERR_FILENO) == 1) {}

  void show(const PlanProgress& at) {
    if (quiet_ || (at.of_round == 0 && !terminal_)) return;
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    if (!terminal_ && seconds < next_s_) return;
    next_s_ = seconds + kLineEveryS;
    fmt::print(stderr, "{}plan: round {}, {} of {} {}; {} made, {} found, {:.0f} s{}",
               terminal_ ? "\r\033[K" : "", at.round, at.ended, at.of_round, plural(at.of_round, "run"),
               at.runs, at.found, seconds, terminal_ ? "" : "\n");
    shown_ = terminal_;
  }
  void finish() const {
    if (shown_) fmt::print(stderr, "\r\033[K");
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr double kLineEveryS = 5;
  const bool quiet_, terminal_;
  const Clock::time_point start_ = Clock::now();
  double next_s_ = 0;
  bool shown_ = false;
};

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
  PlanProgressLine line(arguments.quiet);
  how.status = [&](const PlanProgress& at) { line.show(at); };
  const Result<Plan> made = make_plan(*spec, how);
  line.finish();
  if (!made) return complain(made.error());
  if (Result<void> ok =
          write_files(arguments.out, {{"plan.json", plan_file(*spec, *made, plan_command(arguments))}});
      !ok)
    return complain(ok.error(), kExitEnvironment);
  fmt::print("{}", format_plan(*spec, *made, *format));
  if (!arguments.quiet)
    fmt::print(stderr, "{} {}, {} {} now, {} found; in {}\n", made->candidates.size(),
               plural(made->candidates.size(), "candidate"), made->runs, plural(made->runs, "run"),
               made->found, arguments.out);
  if (made->not_judged()) return kExitInvalidInput;
  return made->best ? kExitDone : kExitNo;
}

}  // namespace

void add_plan_command(CLI::App& app, int* status) {
  CLI::App* const command = app.add_subcommand("plan");
  const auto arguments = std::make_shared<PlanArguments>();
  command->add_option("SCENARIO", arguments->scenario)->required();
  add_repeated(command, "--slo", &arguments->slos)->required();
  command->add_option("--load", arguments->load)->required();
  command->add_option("--need", arguments->need)->required();
  add_repeated(command, "--vary", &arguments->vary);
  add_repeated(command, "--set", &arguments->sets);
  add_repeated(command, "--loss", &arguments->losses);
  add_repeated(command, "--price", &arguments->prices);
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
