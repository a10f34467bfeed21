#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/plural.h"
#include "models/files/textproto.h"
#include "scenarios/app/compose.h"
#include "scenarios/cli/cli.h"
#include "scenarios/output/result_folder.h"
#include "scenarios/plan/plan.h"
#include "scenarios/sweep/pool.h"

namespace kvtwin {
namespace {

struct PlanArguments {
  std::string scenario, out = "out/plan", format = "table", load, quality;
  std::vector<std::string> slos, vary, sets, losses;
  double need = 0;
  uint32_t jobs = 0, seeds = 3;
  bool allow_roofline = false, quiet = false;
};

Result<PlanSpec> spec_of(const PlanArguments& arguments) {
  PlanSpec spec;
  spec.sweep.scenario = arguments.scenario;
  spec.sweep.sets = arguments.sets;
  for (const std::string& vary : arguments.vary) {
    Result<Axis> axis = parse_axis(vary);
    if (!axis) return tl::unexpected<Error>(axis.error());
    spec.sweep.axes.push_back(std::move(*axis));
  }
  Result<LoadAxis> load = parse_load(arguments.load);
  if (!load) return tl::unexpected<Error>(load.error());
  spec.load = std::move(*load);
  Result<std::vector<Slo>> slos = parse_slos(arguments.slos);
  if (!slos) return tl::unexpected<Error>(slos.error());
  spec.slos = std::move(*slos);
  for (const std::string& text : arguments.losses) {
    Result<KnownLoss> loss = parse_loss(text);
    if (!loss) return tl::unexpected<Error>(loss.error());
    spec.losses.push_back(std::move(*loss));
  }
  if (!arguments.quality.empty()) {
    const Result<std::string> text = read_text_file(arguments.quality);
    if (!text) return tl::unexpected<Error>(text.error());
    Result<std::vector<KnownLoss>> losses = read_losses(*text, arguments.quality);
    if (!losses) return tl::unexpected<Error>(losses.error());
    for (KnownLoss& loss : *losses) spec.losses.push_back(std::move(loss));
  }
  if (arguments.seeds == 0) return make_error("--seeds", "is 0", "1 at least");
  spec.need = arguments.need;
  spec.seeds = arguments.seeds;
  spec.allow_roofline = arguments.allow_roofline;
  return spec;
}

// The command that makes the same plan.
std::string command_of(const PlanArguments& arguments) {
  std::string out = "kvtwin plan " + arguments.scenario;
  const auto add = [&](const char* option, const std::vector<std::string>& values) {
    for (const std::string& value : values) out += fmt::format(" '--{}={}'", option, value);
  };
  add("slo", arguments.slos);
  out += fmt::format(" --load={} --need={}", arguments.load, arguments.need);
  add("vary", arguments.vary);
  add("set", arguments.sets);
  add("loss", arguments.losses);
  if (!arguments.quality.empty()) add("quality", {arguments.quality});
  if (arguments.seeds != PlanArguments().seeds) out += fmt::format(" --seeds={}", arguments.seeds);
  return out + (arguments.allow_roofline ? " --allow-roofline" : "");
}

int plan(const PlanArguments& arguments) {
  const Result<OutputFormat> format = parse_format(arguments.format);
  if (!format) return complain(format.error());
  if (*format == OutputFormat::kCsv)
    return complain(Error{"--format", "a plan cannot be written as CSV", "table, json or jsonl"});
  const Result<PlanSpec> spec = spec_of(arguments);
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
          write_files(arguments.out, {{"plan.json", plan_file(*spec, *made, command_of(arguments))}});
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
