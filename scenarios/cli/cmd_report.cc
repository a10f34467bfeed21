#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/plural.h"
#include "scenarios/app/results.h"
#include "scenarios/cli/cli.h"
#include "scenarios/report/report_inputs.h"

namespace kvtwin {
namespace {

struct ReportArguments {
  std::vector<std::string> dirs, slos;
  std::string out = "report.html";
};

int make_report(const ReportArguments& arguments) {
  const std::filesystem::path out = arguments.out;
  const bool markdown = out.extension() == ".md";
  if (!markdown && out.extension() != ".html")
    return complain(
        Error{"--out", fmt::format("\"{}\" is not a page", arguments.out), "a name in .html or .md"});
  std::string command = fmt::format("kvtwin report {}", fmt::join(arguments.dirs, " "));
  for (const std::string& slo : arguments.slos) command += fmt::format(" --slo='{}'", slo);
  command += fmt::format(" --out={}", arguments.out);
  const Result<Report> report = read_report(arguments.dirs, command, arguments.slos);
  if (!report) return complain(report.error());
  const std::string dir = out.has_parent_path() ? out.parent_path().string() : ".";
  const std::string text = markdown ? report_markdown(*report) : report_html(*report);
  if (Result<void> ok = write_files(dir, {{out.filename().string(), text}}); !ok)
    return complain(ok.error(), kExitEnvironment);
  std::string of;
  for (const auto& [count, what] : {std::pair{report->runs.size(), "run"},
                                    {report->sweeps.size(), "sweep"},
                                    {report->validations.size(), "validation"},
                                    {report->qualities.size(), "evaluation"},
                                    {report->plans.size(), "plan"}}) {
    if (count > 0) of += fmt::format("{} {}, ", count, plural(count, what));
  }
  const auto bytes = static_cast<double>(text.size());
  fmt::print("{}: {}{}\n", arguments.out, of,
             bytes < 1e5 ? fmt::format("{:.1f} kB", bytes / 1e3) : fmt::format("{:.2f} MB", bytes / 1e6));
  return kExitDone;
}

}  // namespace

void add_report_command(CLI::App& app, int* status) {
  CLI::App* const command = app.add_subcommand("report");
  const auto arguments = std::make_shared<ReportArguments>();
  command->add_option("DIR", arguments->dirs)->required();
  command->add_option("--out", arguments->out);
  add_repeated(command, "--slo", &arguments->slos);
  command->callback([arguments, status] { *status = make_report(*arguments); });
}

}  // namespace kvtwin
