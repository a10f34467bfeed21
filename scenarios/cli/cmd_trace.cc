#include "scenarios/cli/cmd_trace.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/plural.h"
#include "scenarios/cli/cli.h"
#include "traces/format/writer.h"
#include "traces/importers/formats.h"
#include "traces/inspect/cut.h"
#include "traces/inspect/inspect.h"

namespace kvtwin {
namespace {

// Parses "3s", "250ms", "10min", "2h"; "0" is zero.
Result<int64_t> parse_duration(const std::string& flag, const std::string& text) {
  const auto problem = [&] {
    return make_error(flag, fmt::format("'{}' is not a duration", text), "like 250ms, 3s, 10min or 2h");
  };
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return problem();
  const std::string unit(end, text.data() + text.size());
  uint64_t ns = 0;
  if (unit == "ms")
    ns = 1'000'000;
  else if (unit == "s")
    ns = 1'000'000'000;
  else if (unit == "min")
    ns = 60'000'000'000;
  else if (unit == "h")
    ns = 3'600'000'000'000;
  else if (number != 0 || !unit.empty())
    return problem();
  if (ns != 0 && number > (uint64_t{1} << 60) / ns)
    return make_error(flag, fmt::format("'{}' is too long", text), "at most 36 years");
  return static_cast<int64_t>(number * ns);
}

struct Arguments {
  std::string format, path, out;
  std::string from = "auto", as = "table", sharing = "none", jitter = "0", until = "0", sub_agents = "keep";
  ImportOptions import;
  CutOptions cut;
};

int finish(const Result<void>& good, const std::vector<std::string>& notes) {
  for (const std::string& note : notes) fmt::print(stderr, "{}\n", note);
  return good ? 0 : complain(good.error());
}

int run_import(Arguments arguments) {
  if (arguments.path.empty()) arguments.path = std::exchange(arguments.format, arguments.from);
  const auto sharing = parse_sharing(arguments.sharing);
  if (!sharing) return complain(sharing.error());
  const auto jitter = parse_duration("--jitter", arguments.jitter);
  if (!jitter) return complain(jitter.error());
  std::vector<std::string> notes;
  arguments.import.sharing = *sharing;
  arguments.import.jitter_ns = *jitter;
  arguments.import.notes = &notes;
  TraceWriter writer(arguments.out);
  const auto good = import_trace(arguments.format, arguments.path, arguments.import, &writer);
  if (good) report_written(arguments.out, writer.footer());
  return finish(good, notes);
}

int run_export(const Arguments& arguments) {
  const auto sink = make_exporter(arguments.format, arguments.out);
  if (!sink) return complain(sink.error());
  const auto good = import_trace("kvtwin", arguments.path, {}, sink->get());
  if (good) fmt::print("{}\n", arguments.out);
  return finish(good, {});
}

int run_inspect(Arguments arguments) {
  if (arguments.as != "table" && arguments.as != "json") {
    return complain(Error{"--format", fmt::format("'{}'", arguments.as), "table or json"});
  }
  std::vector<std::string> notes;
  arguments.import.notes = &notes;
  TraceInspector inspector;
  const auto good = import_trace(arguments.from, arguments.path, arguments.import, &inspector);
  if (good) fmt::print("{}", arguments.as == "json" ? inspector.json().dump(2) + "\n" : inspector.table());
  return finish(good, notes);
}

int run_cut(Arguments arguments) {
  const auto until = parse_duration("--until", arguments.until);
  if (!until) return complain(until.error());
  if (arguments.sub_agents != "keep" && arguments.sub_agents != "opaque") {
    return complain(Error{"--sub-agents", fmt::format("'{}'", arguments.sub_agents), "keep or opaque"});
  }
  arguments.cut.until_ns = *until;
  arguments.cut.opaque_sub_agents = arguments.sub_agents == "opaque";
  TraceWriter writer(arguments.out);
  TraceCut cut(arguments.cut, &writer);
  auto good = import_trace("kvtwin", arguments.path, {}, &cut);
  if (good) report_written(arguments.out, writer.footer());
  return finish(good, {});
}

void add_import(CLI::App& trace, int* status) {
  CLI::App* const command = trace.add_subcommand("import");
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("FORMAT", arguments->format)->required();
  command->add_option("PATH", arguments->path);
  command->add_option("--out", arguments->out)->required();
  command->add_option("--format", arguments->from);
  command->add_option("--sharing", arguments->sharing);
  command->add_flag("--all-files", arguments->import.all_files);
  command->add_option("--block-tokens", arguments->import.block_tokens);
  command->add_flag("--infer-sessions", arguments->import.infer_sessions);
  command->add_option("--jitter", arguments->jitter);
  command->add_option("--seed", arguments->import.seed);
  command->callback([arguments, status] { *status = run_import(*arguments); });
}

void add_export(CLI::App& trace, int* status) {
  CLI::App* const command = trace.add_subcommand("export");
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("FORMAT", arguments->format)->required();
  command->add_option("FILE", arguments->path)->required();
  command->add_option("--out", arguments->out)->required();
  command->callback([arguments, status] { *status = run_export(*arguments); });
}

void add_inspect(CLI::App& trace, int* status) {
  CLI::App* const command = trace.add_subcommand("inspect");
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("FILE", arguments->path)->required();
  command->add_option("--from", arguments->from);
  command->add_option("--format", arguments->as);
  command->callback([arguments, status] { *status = run_inspect(*arguments); });
}

void add_cut(CLI::App& trace, int* status) {
  CLI::App* const command = trace.add_subcommand("cut");
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("FILE", arguments->path)->required();
  command->add_option("--out", arguments->out)->required();
  command->add_option("--window", arguments->cut.window_tokens);
  command->add_option("--min-requests", arguments->cut.head_requests_min);
  command->add_option("--sessions", arguments->cut.sessions_max);
  command->add_option("--requests", arguments->cut.requests_max);
  command->add_option("--until", arguments->until);
  command->add_option("--sub-agents", arguments->sub_agents);
  command->callback([arguments, status] { *status = run_cut(*arguments); });
}

}  // namespace

void report_written(const std::string& path, const v1::TraceFooter& footer) {
  const auto counted = [](uint64_t count, const char* noun) {
    return fmt::format("{} {}", count, plural(count, noun));
  };
  fmt::print("{}: {}, {}, {}, {}, {}\n", path, counted(footer.sessions(), "session"),
             counted(footer.llm_requests(), "request"), counted(footer.tool_calls(), "tool call"),
             counted(footer.prompt_tokens(), "prompt token"),
             counted(footer.output_tokens(), "output token"));
}

void add_trace_command(CLI::App& app, int* exit_status) {
  CLI::App* const trace = app.add_subcommand("trace");
  trace->require_subcommand(1);
  add_import(*trace, exit_status);
  add_export(*trace, exit_status);
  add_inspect(*trace, exit_status);
  add_cut(*trace, exit_status);
  add_trace_synth_command(*trace, exit_status);
  add_trace_task_command(*trace, exit_status);
  CLI::App* const list = trace->add_subcommand("formats");
  list->callback([exit_status] {
    for (const TraceFormat& format : formats()) {
      fmt::print("  {:<18}{:<9}{}\n", format.name, format.exporter != nullptr ? "in, out" : "in",
                 format.description);
    }
    *exit_status = 0;
  });
}

}  // namespace kvtwin
