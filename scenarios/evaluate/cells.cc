#include "scenarios/evaluate/cells.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "engine/methods/traits.h"
#include "engine/metrics/metrics.h"
#include "engine/metrics/metrics_summary.h"
#include "scenarios/app/compose_values.h"
#include "scenarios/evaluate/kv_bytes.h"
#include "traces/format/writer.h"
#include "traces/importers/formats.h"
#include "traces/tasks/make_task.h"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kBatch = 8;  // the batch that the limits of scenarios/quality are made for

// Forwards to two sinks.
class TwoSinks final : public TraceSink {
 public:
  TwoSinks(TraceSink* first, TraceSink* second) : first_(*first), second_(*second) {}
  Result<void> header(const v1::TraceHeader& header) override {
    if (auto ok = first_.header(header); !ok) return ok;
    return second_.header(header);
  }
  Result<void> shared_spans(const v1::SharedSpanTable& table) override {
    if (auto ok = first_.shared_spans(table); !ok) return ok;
    return second_.shared_spans(table);
  }
  Result<void> session(const v1::Session& session) override {
    if (auto ok = first_.session(session); !ok) return ok;
    return second_.session(session);
  }
  Result<void> done() override {
    if (auto ok = first_.done(); !ok) return ok;
    return second_.done();
  }

 private:
  TraceSink& first_;
  TraceSink& second_;
};

fs::path trace_path(const EvaluateRequest& request, const std::string& task) {
  const std::string name =
      request.shards == 1 ? fmt::format("{}.trace", task) : fmt::format("{}.{}.trace", task, request.shard);
  return fs::absolute(fs::path(request.out) / "tasks" / name);
}

std::vector<std::string> cell_sets(const EvaluateRequest& request, const std::string& trace,
                                   const std::string& backend) {
  const uint32_t batch = request.batch > 0 ? request.batch : kBatch;
  std::vector<std::string> out = {"backend=" + backend,
                                  "clock=wall",
                                  "trace.format=kvtwin",
                                  "trace.path=" + trace,
                                  "replay.arrivals=fixed_population",
                                  fmt::format("replay.population={}", batch)};
  out.insert(out.end(), request.sets.begin(), request.sets.end());
  return out;
}

// Nullopt: nothing was chosen.
std::optional<double> rate(uint64_t part, uint64_t whole) {
  if (whole == 0) return std::nullopt;
  return static_cast<double>(part) / static_cast<double>(whole);
}

// Limits that grow with the batch: steps and pages for the requests that run concurrently.
std::vector<std::string> batch_sets(const EvaluateRequest& request, const Scenario& scenario) {
  if (request.batch == 0) return {};
  const uint64_t pages = scenario.values.memory().gpu_pages();
  std::vector<std::string> out = {
      fmt::format("limits.requests_max={}", request.batch),
      fmt::format("limits.step_tokens_max={}",
                  std::max(scenario.values.limits().step_tokens_max(), 128 * request.batch))};
  if (pages > 0)
    out.push_back(fmt::format("memory.gpu_pages={}", std::max(pages, pages * request.batch / kBatch)));
  return out;
}

}  // namespace

Error joined(const Errors& errors) {
  Error out = errors.front();
  if (errors.size() > 1) out.what += fmt::format(" (and {} more)", errors.size() - 1);
  return out;
}

TaskTrace::~TaskTrace() {
  std::error_code ignored;
  if (temporary) fs::remove(path, ignored);
}

Result<const TaskTrace*> TaskTraces::of(const std::string& task) {
  if (const auto known = made_.find(task); known != made_.end()) return known->second.get();
  TaskOptions options{.task = task,
                      .split = "test",
                      .sessions = 10,
                      .seed = request_.seed,
                      .tokens = request_.tokens,
                      .questions = request_.per_session,
                      .drop_turns = request_.drop_turns};
  TaskKey probe;
  if (Result<void> ok = make_task(options, &probe); !ok) return tl::unexpected<Error>(ok.error());
  options.sessions =
      std::max<uint64_t>(1, (10 * request_.questions + probe.questions() - 1) / probe.questions());
  std::error_code failed;
  fs::create_directories(fs::path(request_.out) / "tasks", failed);
  if (failed) return make_error(request_.out, "cannot be made: " + failed.message(), "choose another --out");
  auto out = std::make_unique<TaskTrace>();
  // Another process may write the same trace concurrently: each shard has files of its own.
  out->path = trace_path(request_, task);
  out->temporary = request_.shards > 1;
  TraceWriter writer(out->path);
  TwoSinks both(&writer, &out->key);
  if (Result<void> ok = make_task(options, &both); !ok) return tl::unexpected<Error>(ok.error());
  return (made_[task] = std::move(out)).get();
}

Result<std::vector<Cell>> plan_entries(const EvaluateRequest& request, TaskTraces* traces) {
  std::vector<Cell> out;
  for (const std::string& path : request.scenarios) {
    const Result<const TaskTrace*> any = traces->of(request.tasks.front());
    if (!any) return tl::unexpected<Error>(any.error());
    // The existence of a budget depends neither on its size nor on the trace.
    const tl::expected<Scenario, Errors> scenario =
        load_scenario(path, cell_sets(request, (*any)->path, request.backends.front()));
    if (!scenario) return tl::unexpected<Error>(joined(scenario.error()));
    const bool budgeted = !budget_sets(*scenario, 1, 1).empty();
    const std::string model = fs::path(scenario->values.cpu().checkpoint()).filename().string();
    for (const uint32_t budget : budgeted ? request.budgets : std::vector<uint32_t>{0}) {
      for (const std::string& task : request.tasks) {
        Cell cell;
        cell.row.policy = fs::path(path).stem().string();
        cell.row.task = task, cell.row.budget = budget;
        cell.row.model = model;
        cell.row.asked =
            fmt::format("tokens={} per_session={} seed={}{}", request.tokens, request.per_session,
                        request.seed, request.drop_turns ? " turns=dropped" : "");
        cell.scenario = path;
        const fs::path folder = fs::path(request.out) / "cells";
        cell.file = (folder / fmt::format("{}.{}.{}.json", cell.row.policy, budget, task)).string();
        out.push_back(std::move(cell));
      }
    }
  }
  return out;
}

tl::expected<Scenario, Errors> cell_scenario(const EvaluateRequest& request, const Cell& cell,
                                             const TaskTrace& trace, const std::string& backend) {
  std::vector<std::string> sets = cell_sets(request, trace.path, backend);
  tl::expected<Scenario, Errors> scenario = load_scenario(cell.scenario, sets);
  if (!scenario) return scenario;
  std::vector<std::string> more = batch_sets(request, *scenario);
  if (cell.row.budget > 0) {
    for (const std::string& set : budget_sets(*scenario, cell.row.budget, trace.key.prompt_mean()))
      more.push_back(set);
  }
  // The user's settings take precedence, so they come last.
  sets.insert(sets.end() - static_cast<ptrdiff_t>(request.sets.size()), more.begin(), more.end());
  return load_scenario(cell.scenario, sets);
}

Result<size_t> first_backend(const EvaluateRequest& request) {
  TaskTraces traces(&request);
  const Result<std::vector<Cell>> cells = plan_entries(request, &traces);
  if (!cells) return tl::unexpected<Error>(cells.error());
  const Result<const TaskTrace*> trace = traces.of(cells->front().row.task);
  if (!trace) return tl::unexpected<Error>(trace.error());
  for (size_t i = 0; i + 1 < request.backends.size(); ++i) {
    const tl::expected<Scenario, Errors> scenario =
        cell_scenario(request, cells->front(), **trace, request.backends[i]);
    if (!scenario) continue;
    const tl::expected<Composed, Errors> composed = compose(*scenario);
    if (composed && (request.backends[i] != "cuda" || check_cuda_backend(*scenario, *composed))) return i;
  }
  return request.backends.size() - 1;
}

Result<void> run_cell(const Scenario& scenario, const TaskTrace& trace, QualityRow* row) {
  tl::expected<Composed, Errors> composed = compose(scenario);
  if (!composed) return tl::unexpected<Error>(joined(composed.error()));
  if (!composed->tokens || !composed->tokens->any())
    return make_error(scenario.where("model.name"),
                      fmt::format("has a vocabulary of {}, tasks have another", composed->llm.vocab),
                      "a model that was trained on tasks: models/tiny/tasks-6x256");
  Answers answers(&*composed, &trace.key);
  composed->samples = &answers;
  composed->step_time = Duration{1'000'000};
  Metrics metrics(composed->facts);
  const Result<std::unique_ptr<EngineBackend>> backend = make_engine_backend(scenario, *composed, false);
  if (!backend) return tl::unexpected<Error>(backend.error());
  Client* const client = (*backend)->watch(composed->client.get());
  const Result<SimulatedEnd> end = (*backend)->run(scenario, &*composed, client, {&metrics});
  if (!end) return tl::unexpected<Error>(end.error());
  const Summary sum = summarise(metrics);
  row->backend = scenario.values.backend();
  row->prompt_mean = trace.key.prompt_mean();
  row->answers = answers.totals();
  row->reads_raw = sum.reads_raw, row->reads_effective = sum.reads_effective;
  row->reused = sum.reused_tokens, row->reused_live = sum.reused_live;
  row->tokens_computed = end->tokens_computed, row->samples = end->samples_digest;
  const KvBytes bytes = kv_bytes(scenario, *composed, sum);
  row->kv_bytes_mean = bytes.kept, row->kv_read_bytes_mean = bytes.read;
  const SimulatedEnd::Retrieval& recalls = end->retrieval;
  row->correction_rate = rate(recalls.heads_corrected, recalls.heads_chose);
  row->miss_rate = rate(recalls.pages_now + recalls.pages_next, recalls.pages_chosen);
  return {};
}

std::vector<std::string> budget_sets(const Scenario& scenario, uint32_t cells, double prompt_mean) {
  const v1::Policies& axes = scenario.values.policies();
  if (!retrieval_traits(axes.retrieval()).reads_everything())
    return {fmt::format("policies.retrieval_options.budget_tokens={}", cells)};
  if (budget_traits(axes.budget()).keeps_all) return {};
  const v1::BudgetOptions& options = axes.budget_options();
  if (layout_traits(axes.layout()).slot_retention == SlotRetention::kRing &&
      cells > options.sinks()) {  // a ring holds sinks and window only
    return {fmt::format("policies.budget_options.kv_entries={}", cells),
            fmt::format("policies.budget_options.window={}", cells - options.sinks())};
  }
  if (options.kv_entries() > 0) return {fmt::format("policies.budget_options.kv_entries={}", cells)};
  return {fmt::format("policies.budget_options.ratio={:.6f}", std::min(1.0, cells / prompt_mean))};
}

}  // namespace kvtwin
