// kvtwin trace make-task: sessions with questions and their correct answers (traces/tasks/make_task.h).

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/plural.h"
#include "models/files/textproto.h"
#include "scenarios/cli/cli.h"
#include "scenarios/cli/cmd_trace.h"
#include "traces/format/writer.h"
#include "traces/tasks/make_task.h"

namespace kvtwin {
namespace {

struct TaskArguments {
  TaskOptions options;
  std::string out, arrays;
  bool list = false;
};

int run_make_task(const TaskArguments& arguments) {
  std::vector<std::string> names;
  for (const TaskInfo& one : tasks()) {
    names.push_back(one.name);
    if (arguments.list) fmt::print("  {:<20}{}\n", one.name, one.description);
  }
  if (arguments.list) return kExitDone;
  if (arguments.options.task.empty())
    return complain(Error{"TASK", "is missing", fmt::format("one of {}", fmt::join(names, ", "))});
  if (arguments.out.empty() == arguments.arrays.empty())
    return complain(Error{"--out", arguments.out.empty() ? "is missing" : "cannot be combined with --arrays",
                          "--out=FILE writes a trace, --arrays=PREFIX arrays for training"});
  if (!arguments.arrays.empty() && arguments.options.drop_turns)
    return complain(Error{"--drop-turns", "cannot be combined with --arrays",
                          "a row of an array is a session whose history grows"});
  if (!arguments.arrays.empty()) {
    TaskArrays arrays(arguments.arrays, arguments.options.tokens);
    if (auto good = make_task(arguments.options, &arrays); !good) return complain(good.error());
    fmt::print("{}.tokens.npy: {} {} of {} tokens\n", arguments.arrays, arguments.options.sessions,
               plural(arguments.options.sessions, "session"), arguments.options.tokens);
    return kExitDone;
  }
  TraceWriter writer(arguments.out);
  if (auto good = make_task(arguments.options, &writer); !good) return complain(good.error());
  report_written(arguments.out, writer.footer());
  return kExitDone;
}

}  // namespace

void add_trace_task_command(CLI::App& trace, int* exit_status) {
  CLI::App* const command = trace.add_subcommand("make-task");
  const auto arguments = std::make_shared<TaskArguments>();
  TaskOptions& options = arguments->options;
  options.sessions = 100;
  options.seed = 1;
  command->add_option("TASK", options.task);
  command->add_option("--out", arguments->out);
  command->add_option("--arrays", arguments->arrays);
  command->add_option("--sessions", options.sessions);
  command->add_option("--questions", options.questions);
  command->add_option("--tokens", options.tokens);
  command->add_flag("--drop-turns", options.drop_turns);
  command->add_option("--split", options.split);
  command->add_option("--seed", options.seed);
  command->add_flag("--list", arguments->list);
  command->callback([arguments, exit_status] { *exit_status = run_make_task(*arguments); });
}

}  // namespace kvtwin
