#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "models/files/textproto.h"
#include "scenarios/cli/cli.h"
#include "scenarios/output/result_folder.h"
#include "scenarios/server_runs/write_aiperf.h"

namespace kvtwin {
namespace {

constexpr size_t kBytesMax = size_t{1} << 30;

struct ExportArguments {
  std::string format, dir, out;
};

int run_export(const ExportArguments& arguments) {
  if (arguments.format != "aiperf")
    return complain(Error{"kvtwin export", fmt::format("there is no format \"{}\"", arguments.format),
                          "aiperf; traces are exported by kvtwin trace export"});
  const Result<v1::RunResult> result = read_result(arguments.dir);
  if (!result) return complain(result.error());
  const std::string path = arguments.dir + "/requests.csv";
  const Result<std::string> csv = read_text_file(path, kBytesMax);
  if (!csv) return complain(Error{path, csv.error().what, "the folder of a run, with requests.csv"});
  const Result<std::vector<RunFile>> files = aiperf_files(*csv, result->scenario(), path);
  if (!files) return complain(files.error());
  if (Result<void> ok = write_files(arguments.out, *files); !ok)
    return complain(ok.error(), kExitEnvironment);
  fmt::print("{}: for aiperf plot --paths {}\n", arguments.out, arguments.out);
  return kExitDone;
}

}  // namespace

void add_export_command(CLI::App& app, int* status) {
  CLI::App* const command = app.add_subcommand("export");
  const auto arguments = std::make_shared<ExportArguments>();
  command->add_option("FORMAT", arguments->format)->required();
  command->add_option("RUN_DIR", arguments->dir)->required();
  command->add_option("--out", arguments->out)->required();
  command->callback([arguments, status] { *status = run_export(*arguments); });
}

}  // namespace kvtwin
