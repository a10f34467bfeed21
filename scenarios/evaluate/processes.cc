#include "scenarios/evaluate/processes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <vector>

#include "models/textproto.h"
#include "scenarios/sweep/pool.h"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

constexpr size_t kShardsEach = 4;  // so many processes one after the other: cells differ in length

std::vector<std::string> words_of(const EvaluateRequest& request) {
  std::vector<std::string> out = {"evaluate"};
  out.insert(out.end(), request.scenarios.begin(), request.scenarios.end());
  out.push_back(fmt::format("--tasks={}", fmt::join(request.tasks, ",")));
  out.push_back(fmt::format("--budgets={}", fmt::join(request.budgets, ",")));
  out.push_back(fmt::format("--world={}", fmt::join(request.worlds, ",")));
  out.push_back(fmt::format("--questions={}", request.questions));
  out.push_back(fmt::format("--tokens={}", request.tokens));
  out.push_back(fmt::format("--per-session={}", request.per_session));
  out.push_back(fmt::format("--seed={}", request.seed));
  if (request.batch > 0) out.push_back(fmt::format("--batch={}", request.batch));
  for (const std::string& set : request.sets) out.push_back(fmt::format("--set={}", set));
  out.push_back(fmt::format("--out={}", request.out));
  return out;
}

}  // namespace

Result<void> evaluate_in_processes(const EvaluateRequest& request, const std::string& program,
                                   uint32_t processes, const std::function<void(const std::string&)>& told) {
  const Result<size_t> cells = cell_count(request);
  if (!cells) return tl::unexpected<Mistake>(cells.error());
  const fs::path logs = fs::path(request.out) / "logs";
  std::error_code failed;
  fs::create_directories(logs, failed);
  if (failed) return mistake(request.out, "cannot be made: " + failed.message(), "choose another --out");
  // Several cells a process: a GPU's context takes longer than a cell does on it.
  // Budgets and tasks come round in the order of cells: no shard may have the dear ones of all policy sets.
  size_t shards = std::min<size_t>(*cells, size_t{processes} * kShardsEach);
  while (std::gcd(shards, *cells) > 1) --shards;
  std::vector<Job> jobs;
  for (size_t i = 0; i < shards; ++i) {
    Job job{words_of(request), (logs / fmt::format("{}.txt", i)).string()};
    job.words.push_back(fmt::format("--shard={}/{}", i, shards));
    jobs.push_back(std::move(job));
  }
  return run_jobs(program, jobs, processes, [&](const JobEnd& end) {
    const Result<std::string> text = read_text_file(jobs[end.job].errors);
    if (text && !text->empty()) told(*text);
    if (end.status != 0)
      told(fmt::format("shard {} of {} ended with status {}\n", end.job, shards, end.status));
    return true;
  });
}

}  // namespace kvtwin
