#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/plural.h"
#include "engine/recorder/recorder_replay.h"
#include "models/files/textproto.h"
#include "scenarios/app/results.h"
#include "scenarios/cli/cli.h"

namespace kvtwin {
namespace {

constexpr size_t kLogBytesMax = SIZE_MAX;  // the log of a long run exceeds any fixed limit

struct ReplayArguments {
  std::string dir, format = "table";
  bool quiet = false;
};

// Fails if the result in the log's folder belongs to another run.
Result<void> check_together(const std::string& dir, const Log& log) {
  const Result<v1::RunResult> result = read_result(dir);
  if (!result) return tl::unexpected<Error>(result.error());
  if (result->decisions() == log.digest) return {};
  return make_error(
      dir + "/log.binpb",
      fmt::format("is the log of another run (decisions={:016x}) than run.binpb (decisions={:016x})",
                  log.digest, result->decisions()),
      "record the run again (kvtwin run --record); kvtwin replay FILE replays the log alone");
}

int run_replay(const ReplayArguments& arguments) {
  const Result<OutputFormat> format = parse_format(arguments.format);
  if (!format) return complain(format.error());
  std::error_code ignored;
  const bool is_dir = std::filesystem::is_directory(arguments.dir, ignored);
  const std::string path = is_dir ? arguments.dir + "/log.binpb" : arguments.dir;
  Result<std::string> bytes = read_text_file(path, kLogBytesMax);
  if (!bytes) {
    Error problem = bytes.error();
    problem.hint = "kvtwin run writes a log only with --record";
    return complain(problem);
  }
  const Result<Log> log = read_log(path, *bytes);
  if (!log) return complain(log.error());
  if (is_dir) {
    if (const Result<void> ok = check_together(arguments.dir, *log); !ok) return complain(ok.error());
  }
  const Result<Replayed> replayed = replay(path, *log, {});
  if (!replayed) return complain(replayed.error());

  uint64_t steps = 0;
  for (const Log::Engine& engine : log->engines) steps += engine.ends.size();
  nlohmann::ordered_json out;
  out["scenario"] = log->scenario;
  out["same"] = replayed->same;
  out["decisions"] = fmt::format("{:016x}", replayed->end.digest);
  out["recorded"] = fmt::format("{:016x}", log->digest);
  out["steps"] = steps;
  out["engines"] = log->engines.size();
  out["difference"] = replayed->difference;
  if (*format == OutputFormat::kJson || *format == OutputFormat::kJsonl) {
    fmt::print("{}\n", out.dump(*format == OutputFormat::kJson ? 2 : -1, ' ', false,
                                nlohmann::json::error_handler_t::replace));
  } else if (*format == OutputFormat::kCsv) {
    fmt::print("same,decisions,recorded,steps,engines\n{},{:016x},{:016x},{},{}\n", replayed->same,
               replayed->end.digest, log->digest, steps, log->engines.size());
  } else if (replayed->same) {
    fmt::print("{}: same decisions, decisions={:016x} ({} {} on {} {}, {} client {})\n", log->scenario,
               replayed->end.digest, grouped(steps), plural(steps, "step"), log->engines.size(),
               plural(log->engines.size(), "engine"), grouped(log->client.size()),
               plural(log->client.size(), "event"));
  } else {
    fmt::print("{}: other decisions, decisions={:016x}, recorded {:016x}\nfirst difference: {}\n",
               log->scenario, replayed->end.digest, log->digest, replayed->difference);
  }
  return replayed->same ? kExitDone : kExitNo;
}

}  // namespace

void add_replay_command(CLI::App& app, int* status) {
  CLI::App* const command = app.add_subcommand("replay");
  const auto arguments = std::make_shared<ReplayArguments>();
  command->add_option("RUN_DIR", arguments->dir)->required();
  command->add_option("--format", arguments->format);
  command->add_flag("--quiet", arguments->quiet);
  command->callback([arguments, status] { *status = run_replay(*arguments); });
}

}  // namespace kvtwin
