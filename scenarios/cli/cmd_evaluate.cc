#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "scenarios/app/compose.h"
#include "scenarios/app/compose_values.h"
#include "scenarios/cli/cli.h"
#include "scenarios/evaluate/evaluate.h"
#include "scenarios/evaluate/paired.h"
#include "scenarios/evaluate/processes.h"
#include "scenarios/evaluate/throughput.h"
#include "scenarios/sweep/pool.h"
#include "traces/tasks/make_task.h"

namespace kvtwin {
namespace {

struct EvaluateArguments {
  EvaluateRequest request;
  std::string tasks = "multi_key,question_first,old_result,long_list", budgets = "32,64,128",
              backends = "cpu", format = "table", shard = "0/1", jobs = "1", paired;
  std::vector<uint32_t> processes;
  bool quiet = false, allow_unread = false;

  bool in_processes() const { return processes != std::vector<uint32_t>{1}; }
};

bool whole(const std::string& word, uint32_t* to) {
  if (word.empty() || word.size() > 7 || word.find_first_not_of("0123456789") != std::string::npos)
    return false;
  *to = static_cast<uint32_t>(std::stoul(word));
  return true;
}

Result<void> check(EvaluateArguments* arguments) {
  EvaluateRequest& request = arguments->request;
  std::vector<std::string> known;
  for (const TaskInfo& one : tasks()) known.push_back(one.name);
  request.tasks = split_list(arguments->tasks);
  for (const std::string& task : request.tasks) {
    if (std::find(known.begin(), known.end(), task) == known.end())
      return make_error("--tasks", fmt::format("there is no task \"{}\"", task.substr(0, 40)),
                        fmt::format("one of: {}", fmt::join(known, ", ")));
  }
  for (const std::string& word : split_list(arguments->budgets)) {
    request.budgets.push_back(0);
    if (!whole(word, &request.budgets.back()) || request.budgets.back() == 0)
      return make_error("--budgets", fmt::format("\"{}\" is not a budget", word.substr(0, 40)),
                        "KV entries per head");
  }
  request.backends = split_list(arguments->backends);
  for (const std::string& backend : request.backends) {
    if (backend != "cpu" && backend != "cuda")
      return make_error("--backend", fmt::format("\"{}\" computes no values", backend.substr(0, 40)),
                        "cpu or cuda; cuda,cpu takes the first that computes a policy set");
  }
  if (request.batch > 4'096) return make_error("--batch", fmt::format("is {}", request.batch), "1 to 4,096");
  for (const std::string& word : split_list(arguments->jobs)) {
    arguments->processes.push_back(0);
    if (!whole(word, &arguments->processes.back()) || arguments->processes.back() < 1 ||
        arguments->processes.back() > 1'024)
      return make_error("--jobs", fmt::format("\"{}\" is not a number of processes", word.substr(0, 40)),
                        "1 to 1,024");
  }
  if (arguments->processes.size() != 1 && arguments->processes.size() != request.backends.size())
    return make_error("--jobs", fmt::format("has {} numbers", arguments->processes.size()),
                      fmt::format("one, or one for each backend: {}", request.backends.size()));
  if (request.scenarios.empty() && request.collect.empty())
    return make_error("SCENARIO", "is missing", "policy sets, or --collect=DIR");
  if (request.questions < 1 || request.questions > 100'000)
    return make_error("--questions", fmt::format("is {}", request.questions), "1 to 100,000");
  const size_t slash = arguments->shard.find('/');
  if (slash == std::string::npos || !whole(arguments->shard.substr(0, slash), &request.shard) ||
      !whole(arguments->shard.substr(slash + 1), &request.shards) || request.shard >= request.shards)
    return make_error("--shard", fmt::format("is \"{}\"", arguments->shard.substr(0, 40)),
                      "I/N with I below N, as 0/4");
  if (!request.load.empty() && !can_simulate())
    return make_error("--throughput", "this build has no simulated backend",
                      "install libsimgrid-dev and configure again");
  if (arguments->in_processes() && request.shards > 1)
    return make_error("--jobs", "cannot be combined with --shard", "one of them");
  if (request.out.empty()) return make_error("--out", "is missing", "the folder of the cells");
  return {};
}

// Fails if this build or this machine has none of the backends.
Result<void> check_backends(const EvaluateRequest& request) {
  const bool cuda = std::all_of(request.backends.begin(), request.backends.end(),
                                [](const std::string& one) { return one == "cuda"; });
  if (!cuda || request.backends.empty() || request.scenarios.empty()) return {};
  const tl::expected<Scenario, Errors> scenario = load_scenario(request.scenarios.front(), {"backend=cuda"});
  return scenario ? check_cuda_backend(*scenario) : Result<void>{};  // a bad scenario is a refused row
}

int run_evaluate(EvaluateArguments arguments) {
  const Result<OutputFormat> format = parse_format(arguments.format);
  if (!format) return complain(format.error());
  if (Result<void> ok = check(&arguments); !ok) return complain(ok.error());
  if (!arguments.allow_unread) {
    if (Result<void> ok = check_sets_read(arguments.request); !ok) return complain(ok.error());
  }
  if (const Result<void> ok = check_backends(arguments.request); !ok)
    return complain(ok.error(), kExitNoBackend);
  using Clock = std::chrono::steady_clock;
  Clock::time_point last = Clock::now();
  std::set<std::string> refusals;  // each is printed once
  const auto report = [&](const QualityRow& row) {
    const double seconds = std::chrono::duration<double>(Clock::now() - last).count();
    last = Clock::now();
    if (arguments.quiet) return;
    if (!row.refused.empty()) {
      if (refusals.insert(row.refused).second)
        fmt::print(stderr, "{} {} {}: refused: {}\n", row.policy, row.budget, row.task, row.refused);
      return;
    }
    fmt::print(stderr, "{} {} {}: {} of {} correct, {:.1f} s, {:.0f} tokens/s\n", row.policy, row.budget,
               row.task, row.answers.right, row.answers.questions, seconds,
               static_cast<double>(row.tokens_computed) / std::max(seconds, 1e-9));
  };
  if (arguments.in_processes()) {
    const auto said = [&](const std::string& text) {
      if (!arguments.quiet) fmt::print(stderr, "{}", text);
    };
    const Result<void> ran =
        evaluate_in_processes(arguments.request, own_program(), arguments.processes, said);
    if (!ran) return complain(ran.error());
  }
  Result<std::vector<QualityRow>> rows = evaluate(arguments.request, report);
  if (!rows) return complain(rows.error());
  if (!arguments.request.load.empty()) {
    const uint32_t processes = *std::max_element(arguments.processes.begin(), arguments.processes.end());
    const auto said = [&](const std::string& text) {
      if (!arguments.quiet) fmt::print(stderr, "{}", text);
    };
    if (Result<void> ok = add_throughput(arguments.request, own_program(), processes, &*rows, said); !ok)
      return complain(ok.error());
  }
  if (Result<void> ok = write_quality(arguments.request.out, *rows); !ok) return complain(ok.error());
  fmt::print("{}", quality_text(*rows, *format));
  if (!arguments.paired.empty()) {
    const Result<std::string> pairs = paired_table(*rows, arguments.paired);
    if (!pairs) return complain(pairs.error());
    // Other formats have the answers in column correct_by_question.
    fmt::print(*format == OutputFormat::kTable ? stdout : stderr, "{}", *pairs);
  }
  const auto refused =
      std::count_if(rows->begin(), rows->end(), [](const QualityRow& row) { return !row.refused.empty(); });
  if (refused == 0 || arguments.request.shards > 1)
    return kExitDone;  // the command that collects the shards reports refusals
  return static_cast<size_t>(refused) == rows->size() ? kExitInvalidInput : kExitNo;
}

}  // namespace

void add_evaluate_command(CLI::App& app, int* status) {
  CLI::App* const command = app.add_subcommand("evaluate");
  const auto arguments = std::make_shared<EvaluateArguments>();
  EvaluateRequest& request = arguments->request;
  command->add_option("SCENARIO", request.scenarios);
  command->add_option("--tasks", arguments->tasks);
  command->add_option("--budgets", arguments->budgets);
  command->add_option("--questions", request.questions);
  command->add_option("--tokens", request.tokens);
  command->add_option("--per-session", request.per_session);
  command->add_flag("--drop-turns", request.drop_turns);
  command->add_option("--seed", request.seed);
  command->add_option("--out", request.out);
  command->add_option("--backend", arguments->backends);
  command->add_option("--batch", request.batch);
  command->add_option("--jobs", arguments->jobs);
  add_repeated(command, "--collect", &request.collect);
  command->add_option("--throughput", request.load);
  command->add_option("--sets-in", request.sets_in);
  command->add_option("--shard", arguments->shard);
  command->add_option("--paired", arguments->paired);
  command->add_option("--format", arguments->format);
  add_repeated(command, "--set", &request.sets);
  command->add_flag("--allow-unread", arguments->allow_unread);
  command->add_flag("--quiet", arguments->quiet);
  command->callback([arguments, status] { *status = run_evaluate(*arguments); });
}

}  // namespace kvtwin
