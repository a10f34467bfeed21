#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "models/files/textproto.h"
#include "scenarios/cli/cli.h"
#include "scenarios/output/compare.h"

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

int run_compare(const CompareArguments& arguments) {
  const Result<OutputFormat> format = parse_format(arguments.format);
  if (!format) return complain(format.error());
  std::error_code ignored;
  if (std::filesystem::is_directory(arguments.requests, ignored)) {
    return complain(Error{arguments.requests, "is a folder, but a real server's log is a file",
                          fmt::format("{0}/requests.jsonl of an imported run; to compare two runs: "
                                      "kvtwin report {1} {0} --out=report.html",
                                      arguments.requests, arguments.dir)});
  }
  const bool is_dir = std::filesystem::is_directory(arguments.dir, ignored);
  const Result<std::vector<Request>> ours = load(is_dir ? arguments.dir + "/requests.jsonl" : arguments.dir);
  if (!ours) return complain(ours.error());
  const Result<std::vector<Request>> real = load(arguments.requests);
  if (!real) return complain(real.error());
  const Result<Comparison> compared = compare(*real, *ours, arguments.skip);
  if (!compared) return complain(compared.error());
  const Result<std::vector<std::string>> broken = broken_limits(*compared, arguments.limits);
  if (!broken) return complain(broken.error());
  fmt::print("{}", format_comparison(*compared, *format));
  for (const std::string& sentence : *broken) fmt::print(stderr, "compare: {}\n", sentence);
  return broken->empty() ? kExitDone : kExitNo;
}

}  // namespace

void add_compare_command(CLI::App& app, int* status) {
  CLI::App* const command = app.add_subcommand("compare", "compare a run with a real server's request log");
  command->set_help_flag();
  const auto arguments = std::make_shared<CompareArguments>();
  command->add_option("RUN_DIR", arguments->dir)->required();
  command->add_option("REQUESTS", arguments->requests)->required();
  command->add_option("--format", arguments->format);
  command->add_option("--skip", arguments->skip);
  command->add_option("--limit", arguments->limits)->expected(1)->allow_extra_args(false)->take_all();
  command->callback([arguments, status] { *status = run_compare(*arguments); });
}

}  // namespace kvtwin
