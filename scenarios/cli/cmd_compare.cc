#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/files/textproto.h"
#include "scenarios/cli/cli.h"
#include "scenarios/output/compare.h"
#include "scenarios/output/compare_runs.h"
#include "scenarios/output/result_folder.h"

namespace kvtwin {
namespace {

constexpr size_t kRequestsBytesMax = size_t{1} << 30;

struct CompareArguments {
  std::string dir, requests, format = "table";
  uint64_t skip = 0;
  std::vector<std::string> limits;
};

Result<std::vector<Request>> load(const std::string& path) {
  const Result<std::string> text = read_text_file(path, kRequestsBytesMax);
  if (!text) return tl::unexpected(text.error());
  return parse_requests(*text, path);
}

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

Result<ComparedRun> load_run(const std::string& dir) {
  Result<v1::RunResult> result = read_result(dir);
  if (!result) return tl::unexpected<Error>(result.error());
  ComparedRun out{std::filesystem::path(dir).lexically_normal().string(), std::move(*result), {}};
  // A server's aggregates have no single requests.
  if (Result<std::vector<Request>> requests = load(dir + "/requests.jsonl"))
    out.requests = std::move(*requests);
  return out;
}

int finish(const std::string& text, const Result<std::vector<std::string>>& broken) {
  if (!broken) return complain(broken.error());
  fmt::print("{}", text);
  for (const std::string& sentence : *broken) fmt::print(stderr, "compare: {}\n", sentence);
  return broken->empty() ? kExitDone : kExitNo;
}

int compare_two_runs(const CompareArguments& arguments, OutputFormat format) {
  if (arguments.skip > 0)
    return complain(Error{"--skip", "leaves out requests of a log, and two runs have all of theirs",
                          fmt::format("kvtwin compare {} {}/requests.jsonl --skip={}", arguments.dir,
                                      arguments.requests, arguments.skip)});
  const Result<ComparedRun> first = load_run(arguments.dir);
  if (!first) return complain(first.error());
  const Result<ComparedRun> second = load_run(arguments.requests);
  if (!second) return complain(second.error());
  const RunsComparison compared = compare_runs(*first, *second);
  return finish(format_runs(compared, format), broken_limits(compared, arguments.limits));
}

int run_compare(const CompareArguments& arguments) {
  const Result<OutputFormat> format = parse_format(arguments.format);
  if (!format) return complain(format.error());
  if (is_folder(arguments.requests)) {
    if (is_folder(arguments.dir)) return compare_two_runs(arguments, *format);
    std::error_code ignored;
    if (!std::filesystem::exists(arguments.dir, ignored))
      return complain(Error{arguments.dir, "does not exist", "the folder of a run"});
    return complain(Error{arguments.dir, "is no folder of a run, and the second argument is one",
                          fmt::format("kvtwin compare {} {}", arguments.requests, arguments.dir)});
  }
  const Result<std::vector<Request>> ours =
      load(is_folder(arguments.dir) ? arguments.dir + "/requests.jsonl" : arguments.dir);
  if (!ours) return complain(ours.error());
  const Result<std::vector<Request>> real = load(arguments.requests);
  if (!real) return complain(real.error());
  const Result<Comparison> compared = compare(*real, *ours, arguments.skip);
  if (!compared) return complain(compared.error());
  return finish(format_comparison(*compared, *format), broken_limits(*compared, arguments.limits));
}

}  // namespace

void add_compare_command(CLI::App& app, int* status) {
  CLI::App* const command = app.add_subcommand("compare");
  const auto arguments = std::make_shared<CompareArguments>();
  command->add_option("RUN_DIR", arguments->dir)->required();
  command->add_option("OTHER", arguments->requests)->required();
  command->add_option("--format", arguments->format);
  command->add_option("--skip", arguments->skip);
  add_repeated(command, "--limit", &arguments->limits);
  command->callback([arguments, status] { *status = run_compare(*arguments); });
}

}  // namespace kvtwin
