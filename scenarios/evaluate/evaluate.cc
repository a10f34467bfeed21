#include "scenarios/evaluate/evaluate.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <memory>

#include "engine/metrics.h"
#include "engine/metrics_summary.h"
#include "engine/policy/registry.h"
#include "models/textproto.h"
#include "scenarios/inputs.h"
#include "scenarios/results.h"
#include "traces/formats.h"
#include "traces/importers.h"
#include "traces/make_task.h"
#include "traces/reader.h"
#include "traces/writer.h"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

// Pushes what comes into two sinks.
class Both final : public TraceSink {
 public:
  Both(TraceSink* first, TraceSink* second) : first_(*first), second_(*second) {}
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

struct TaskTrace {
  std::string path;
  TaskKey key;
};

// Writes the trace of a task, with as many sessions as the questions need. Another process may write the same
// bytes at the same time: whoever renames last wins, and nobody can tell.
Result<std::unique_ptr<TaskTrace>> make_trace(const EvaluateRequest& request, const std::string& task) {
  TaskOptions options{.task = task,
                      .split = "test",
                      .sessions = 10,
                      .seed = request.seed,
                      .tokens = request.tokens,
                      .questions = request.per_session};
  TaskKey probe;
  if (Result<void> ok = make_task(options, &probe); !ok) return tl::unexpected<Mistake>(ok.error());
  options.sessions =
      std::max<uint64_t>(1, (10 * request.questions + probe.questions() - 1) / probe.questions());
  auto out = std::make_unique<TaskTrace>();
  out->path = fs::absolute(fs::path(request.out) / "tasks" / fmt::format("{}.{}.trace", task, request.shard));
  TraceWriter writer(out->path);
  Both both(&writer, &out->key);
  if (Result<void> ok = make_task(options, &both); !ok) return tl::unexpected<Mistake>(ok.error());
  return out;
}

Mistake joined(const Mistakes& mistakes) {
  Mistake out = mistakes.front();
  if (mistakes.size() > 1) out.what += fmt::format(" (and {} more)", mistakes.size() - 1);
  return out;
}

std::vector<std::string> cell_sets(const EvaluateRequest& request, const TaskTrace& trace) {
  std::vector<std::string> out = {"world=cpu",
                                  "clock=wall",
                                  "trace.format=kvtwin",
                                  "trace.path=" + trace.path,
                                  "replay.arrivals=fixed_population",
                                  "replay.population=8"};
  out.insert(out.end(), request.sets.begin(), request.sets.end());
  return out;
}

// Bytes of one token of KV, all layers and heads.
double bytes_per_token(const Composed& composed) {
  return static_cast<double>(composed.facts.front().page_bytes) / composed.facts.front().page_tokens;
}

// Runs one cell. Mistakes: the policy set is refused.
Result<void> run_cell(const Scenario& scenario, const TaskTrace& trace, QualityRow* row) {
  tl::expected<Composed, Mistakes> composed = compose(scenario);
  if (!composed) return tl::unexpected<Mistake>(joined(composed.error()));
  if (!composed->tokens)
    return mistake(scenario.where("model.name"),
                   fmt::format("has a vocabulary of {}, tasks have another", composed->llm.vocab),
                   "a model that was trained on tasks: models/tiny/tasks-6x256");
  Answers answers(&*composed, &trace.key);
  composed->samples = &answers;
  composed->step_time = Duration{1'000'000};
  Metrics metrics(composed->facts);
  const Result<std::unique_ptr<ValuesWorld>> world = make_values_world(scenario, *composed, false);
  if (!world) return tl::unexpected<Mistake>(world.error());
  Client* const client = (*world)->watch(composed->client.get());
  const Result<SimulatedEnd> end = (*world)->run(scenario, &*composed, client, {&metrics});
  if (!end) return tl::unexpected<Mistake>(end.error());
  const Summary sum = summarise(metrics);
  row->answers = answers.totals();
  row->reads_raw = sum.reads_raw, row->reads_effective = sum.reads_effective;
  row->reused = sum.reused_tokens, row->reused_live = sum.reused_live;
  row->tokens_computed = end->tokens_computed, row->samples = end->samples_digest;
  if (sum.output_tokens > sum.finished) {
    const double decodes = static_cast<double>(sum.output_tokens - sum.finished);
    row->kv_bytes_mean = static_cast<double>(sum.reads_effective) / decodes * bytes_per_token(*composed);
  }
  return {};
}

struct Cell {
  QualityRow row;
  std::string file, scenario;
  const TaskTrace* trace = nullptr;
};

Result<std::vector<Cell>> plan(const EvaluateRequest& request,
                               const std::map<std::string, std::unique_ptr<TaskTrace>>& traces) {
  std::vector<Cell> out;
  for (const std::string& path : request.scenarios) {
    // Whether it has a budget does not depend on the budget's size.
    const tl::expected<Scenario, Mistakes> scenario =
        load_scenario(path, cell_sets(request, *traces.begin()->second));
    if (!scenario) return tl::unexpected<Mistake>(joined(scenario.error()));
    const bool budgeted = !budget_sets(*scenario, 1, 1).empty();
    for (const uint32_t budget : budgeted ? request.budgets : std::vector<uint32_t>{0}) {
      for (const std::string& task : request.tasks) {
        Cell cell;
        cell.row.policy = fs::path(path).stem().string();
        cell.row.task = task, cell.row.budget = budget;
        cell.scenario = path;
        cell.trace = traces.at(task).get();
        cell.row.prompt_mean = cell.trace->key.prompt_mean();
        cell.file =
            (fs::path(request.out) / "cells" / fmt::format("{}.{}.{}.json", cell.row.policy, budget, task))
                .string();
        out.push_back(std::move(cell));
      }
    }
  }
  return out;
}

// Leaves the row of `cell` complete: from its file, or computed if `mine`. False: neither.
Result<bool> complete(const EvaluateRequest& request, bool mine, PathDigests* digests, Cell* cell,
                      const std::function<void(const QualityRow&)>& told) {
  std::vector<std::string> sets = cell_sets(request, *cell->trace);
  tl::expected<Scenario, Mistakes> scenario = load_scenario(cell->scenario, sets);
  if (!scenario) return tl::unexpected<Mistake>(joined(scenario.error()));
  if (cell->row.budget > 0) {
    for (const std::string& set : budget_sets(*scenario, cell->row.budget, cell->row.prompt_mean))
      sets.push_back(set);
  }
  scenario = load_scenario(cell->scenario, sets);
  // The trace's path differs between shards; what is in it does not, and that is what counts.
  const Result<uint64_t> inputs =
      scenario ? inputs_fingerprint(*scenario, digests) : Result<uint64_t>(uint64_t{0});
  if (!inputs) return tl::unexpected<Mistake>(inputs.error());
  const uint64_t wanted = *inputs;
  if (const Result<std::string> text = read_text_file(cell->file)) {
    const std::optional<QualityRow> kept = row_from_json(*text);
    if (kept && (kept->inputs == wanted || !mine)) {
      cell->row = *kept;
      return true;
    }
  }
  if (!mine) return false;
  cell->row.inputs = wanted;
  if (!scenario) {
    cell->row.refused = joined(scenario.error()).text();
  } else if (const Result<void> ran = run_cell(*scenario, *cell->trace, &cell->row); !ran) {
    cell->row.refused = ran.error().text();
  }
  const fs::path file(cell->file);
  if (auto ok = write_files(file.parent_path(), {{file.filename(), row_json(cell->row)}}); !ok)
    return tl::unexpected<Mistake>(ok.error());
  told(cell->row);
  return true;
}

}  // namespace

std::vector<std::string> budget_sets(const Scenario& scenario, uint32_t cells, double prompt_mean) {
  const v1::Policies& axes = scenario.values.policies();
  if (axes.retrieval() != "all") return {fmt::format("policies.retrieval_options.budget_tokens={}", cells)};
  if (axes.budget() == "all") return {};
  const v1::BudgetOptions& options = axes.budget_options();
  if (axes.layout() == "arena" && cells > options.sinks()) {  // a ring holds nothing but sinks and window
    return {fmt::format("policies.budget_options.cells={}", cells),
            fmt::format("policies.budget_options.window={}", cells - options.sinks())};
  }
  if (options.cells() > 0) return {fmt::format("policies.budget_options.cells={}", cells)};
  return {fmt::format("policies.budget_options.ratio={:.6f}", std::min(1.0, cells / prompt_mean))};
}

Result<std::vector<QualityRow>> evaluate(const EvaluateRequest& request,
                                         const std::function<void(const QualityRow&)>& told) {
  std::error_code failed;
  fs::create_directories(fs::path(request.out) / "tasks", failed);
  if (failed) return mistake(request.out, "cannot be made: " + failed.message(), "choose another --out");
  std::map<std::string, std::unique_ptr<TaskTrace>> traces;
  for (const std::string& task : request.tasks) {
    Result<std::unique_ptr<TaskTrace>> made = make_trace(request, task);
    if (!made) return tl::unexpected<Mistake>(made.error());
    traces[task] = std::move(*made);
  }
  Result<std::vector<Cell>> cells = plan(request, traces);
  if (!cells) return tl::unexpected<Mistake>(cells.error());
  PathDigests digests;
  std::vector<QualityRow> rows;
  for (size_t i = 0; i < cells->size(); ++i) {
    const bool mine = i % request.shards == request.shard;
    const Result<bool> there = complete(request, mine, &digests, &(*cells)[i], told);
    if (!there) return tl::unexpected<Mistake>(there.error());
    if (*there) rows.push_back((*cells)[i].row);
  }
  const std::vector<RunFile> files = {{"quality.csv", quality_text(rows, OutputFormat::kCsv)},
                                      {"quality.json", quality_text(rows, OutputFormat::kJson)}};
  if (Result<void> ok = write_files(request.out, files); !ok) return tl::unexpected<Mistake>(ok.error());
  return rows;
}

}  // namespace kvtwin
