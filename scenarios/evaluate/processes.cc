#include "scenarios/evaluate/processes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <vector>

#include "engine/base/check.h"
#include "models/files/textproto.h"
#include "scenarios/evaluate/cells.h"
#include "scenarios/sweep/pool.h"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

// Shards per process, run one after the other, because cells differ in length. One on a GPU, where starting a
// process (5 to 12 s on a busy machine) takes longer than a cell (0.5 s).
size_t shards_each(const EvaluateRequest& request) { return request.backends.front() == "cuda" ? 1 : 4; }

std::vector<std::string> words_of(const EvaluateRequest& request) {
  std::vector<std::string> out = {"evaluate"};
  out.insert(out.end(), request.scenarios.begin(), request.scenarios.end());
  out.push_back(fmt::format("--tasks={}", fmt::join(request.tasks, ",")));
  out.push_back(fmt::format("--budgets={}", fmt::join(request.budgets, ",")));
  out.push_back(fmt::format("--backend={}", fmt::join(request.backends, ",")));
  out.push_back(fmt::format("--questions={}", request.questions));
  out.push_back(fmt::format("--tokens={}", request.tokens));
  out.push_back(fmt::format("--per-session={}", request.per_session));
  if (request.drop_turns) out.emplace_back("--drop-turns");
  out.push_back(fmt::format("--seed={}", request.seed));
  if (request.batch > 0) out.push_back(fmt::format("--batch={}", request.batch));
  for (const std::string& set : request.sets) out.push_back(fmt::format("--set={}", set));
  out.push_back(
      "--allow-unread");  // check_sets_read() found a cell that reads each field, maybe of another shard
  out.push_back(fmt::format("--out={}", request.out));
  return out;
}

// Splits the request's policy sets by the backend that computes them: one request per backend.
Result<std::vector<EvaluateRequest>> by_backend(const EvaluateRequest& request) {
  std::vector<EvaluateRequest> out(request.backends.size(), request);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i].scenarios.clear();
    out[i].backends = {request.backends.begin() + static_cast<ptrdiff_t>(i), request.backends.end()};
  }
  for (const std::string& scenario : request.scenarios) {
    EvaluateRequest one = request;
    one.scenarios = {scenario};
    const Result<size_t> backend = first_backend(one);
    if (!backend) return tl::unexpected<Error>(backend.error());
    out[*backend].scenarios.push_back(scenario);
  }
  return out;
}

Result<void> add_shards(const EvaluateRequest& request, uint32_t processes, size_t lane,
                        std::vector<Job>* jobs) {
  if (request.scenarios.empty()) return {};
  const Result<size_t> cells = cell_count(request);
  if (!cells) return tl::unexpected<Error>(cells.error());
  // Cells cycle through budgets and tasks: a number of shards coprime to the number of cells spreads costly
  // cells.
  size_t shards = std::min<size_t>(*cells, size_t{processes} * shards_each(request));
  while (std::gcd(shards, *cells) > 1) --shards;
  const fs::path logs = fs::path(request.out) / "logs";
  for (size_t i = 0; i < shards; ++i) {
    Job job{words_of(request), (logs / fmt::format("{}.{}.txt", lane, i)).string(), lane};
    job.words.push_back(fmt::format("--shard={}/{}", i, shards));
    jobs->push_back(std::move(job));
  }
  return {};
}

}  // namespace

Result<void> evaluate_in_processes(const EvaluateRequest& request, const std::string& program,
                                   const std::vector<uint32_t>& processes,
                                   const std::function<void(const std::string&)>& report) {
  KVT_CHECK(processes.size() == 1 || processes.size() == request.backends.size());
  std::error_code failed;
  fs::create_directories(fs::path(request.out) / "logs", failed);
  if (failed) return make_error(request.out, "cannot be made: " + failed.message(), "choose another --out");
  std::vector<EvaluateRequest> lanes = {request};
  if (processes.size() > 1) {
    Result<std::vector<EvaluateRequest>> parts = by_backend(request);
    if (!parts) return tl::unexpected<Error>(parts.error());
    lanes = std::move(*parts);
  }
  std::vector<Job> jobs;
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    if (Result<void> ok = add_shards(lanes[lane], processes[lane], lane, &jobs); !ok) return ok;
  }
  return run_jobs(program, jobs, processes, [&](const JobEnd& end) {
    const Result<std::string> text = read_text_file(jobs[end.job].errors);
    if (text && !text->empty()) report(*text);
    if (end.status != 0)
      report(fmt::format("shard {} of {} ended with status {}\n", end.job, jobs.size(), end.status));
    return true;
  });
}

}  // namespace kvtwin
