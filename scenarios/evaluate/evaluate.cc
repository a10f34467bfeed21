#include "scenarios/evaluate/evaluate.h"

#include <fmt/format.h>

#include <filesystem>

#include "models/files/textproto.h"
#include "scenarios/app/results.h"
#include "scenarios/evaluate/cells.h"
#include "scenarios/evaluate/collect.h"
#include "scenarios/load/inputs.h"
#include "scenarios/load/unread_fields.h"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

// A cell's scenario for one backend, and the fingerprint of its inputs. Shards use different paths for the
// same trace; the fingerprint covers the content only.
struct Attempt {
  tl::expected<Scenario, Errors> scenario;
  uint64_t inputs = 0;
};

Result<std::vector<Attempt>> attempts(const EvaluateRequest& request, const Cell& cell,
                                      const TaskTrace& trace, PathDigests* digests) {
  std::vector<Attempt> out;
  for (const std::string& backend : request.backends) {
    Attempt attempt{cell_scenario(request, cell, trace, backend)};
    if (attempt.scenario) {
      const Result<uint64_t> inputs = inputs_fingerprint(*attempt.scenario, digests);
      if (!inputs) return tl::unexpected<Error>(inputs.error());
      attempt.inputs = *inputs;
    }
    out.push_back(std::move(attempt));
  }
  return out;
}

std::optional<QualityRow> kept_row(const std::string& file) {
  const Result<std::string> text = read_text_file(file);
  return text ? row_from_json(*text) : std::nullopt;
}

// Completes the row of one of this process's cells, from its file or by computing it.
Result<void> complete(const EvaluateRequest& request, TaskTraces* traces, PathDigests* digests, Cell* cell,
                      const std::function<void(const QualityRow&)>& report) {
  const Result<const TaskTrace*> trace = traces->of(cell->row.task);
  if (!trace) return tl::unexpected<Error>(trace.error());
  const Result<std::vector<Attempt>> all = attempts(request, *cell, **trace, digests);
  if (!all) return tl::unexpected<Error>(all.error());
  if (const std::optional<QualityRow> kept = kept_row(cell->file)) {
    for (const Attempt& attempt : *all) {
      if (kept->inputs != attempt.inputs) continue;
      cell->row = *kept;
      return {};
    }
  }
  // The first backend that computes it; if none does, the refusal of the last one.
  for (const Attempt& attempt : *all) {
    cell->row.inputs = attempt.inputs;
    cell->row.refused.clear();
    if (!attempt.scenario) {
      cell->row.refused = joined(attempt.scenario.error()).text();
    } else if (const Result<void> ran = run_cell(*attempt.scenario, **trace, &cell->row); !ran) {
      cell->row.refused = ran.error().text();
    } else {
      break;
    }
  }
  const fs::path file(cell->file);
  if (auto ok = write_files(file.parent_path(), {{file.filename(), row_json(cell->row)}}); !ok) return ok;
  report(cell->row);
  return {};
}

}  // namespace

Result<void> check_sets_read(const EvaluateRequest& request) {
  if (request.sets.empty() || request.scenarios.empty()) return {};
  TaskTraces traces(&request);
  const Result<std::vector<Cell>> cells = plan_entries(request, &traces);
  if (!cells) return tl::unexpected<Error>(cells.error());
  std::vector<v1::Scenario> all;
  for (const Cell& cell : *cells) {
    const Result<const TaskTrace*> trace = traces.of(cell.row.task);
    if (!trace) return tl::unexpected<Error>(trace.error());
    for (const std::string& backend : request.backends) {
      if (const auto scenario = cell_scenario(request, cell, **trace, backend))
        all.push_back(scenario->values);
    }
  }
  const Errors unread = unread_sets(all, request.sets);
  if (!unread.empty()) return tl::unexpected<Error>(unread.front());
  return {};
}

Result<size_t> cell_count(const EvaluateRequest& request) {
  TaskTraces traces(&request);
  const Result<std::vector<Cell>> cells = plan_entries(request, &traces);
  if (!cells) return tl::unexpected<Error>(cells.error());
  return cells->size();
}

Result<std::vector<QualityRow>> evaluate(const EvaluateRequest& request,
                                         const std::function<void(const QualityRow&)>& report) {
  TaskTraces traces(&request);
  Result<std::vector<Cell>> cells = plan_entries(request, &traces);
  if (!cells) return tl::unexpected<Error>(cells.error());
  PathDigests digests;
  std::vector<QualityRow> rows;
  for (size_t i = 0; i < cells->size(); ++i) {
    Cell& cell = (*cells)[i];
    if (i % request.shards == request.shard) {
      if (Result<void> ok = complete(request, &traces, &digests, &cell, report); !ok)
        return tl::unexpected<Error>(ok.error());
      rows.push_back(cell.row);
    } else if (const std::optional<QualityRow> kept = kept_row(cell.file)) {
      rows.push_back(*kept);
    }
  }
  if (Result<void> ok = collect(request.collect, &rows); !ok) return tl::unexpected<Error>(ok.error());
  return rows;
}

Result<void> write_quality(const std::string& out, const std::vector<QualityRow>& rows) {
  return write_files(out, {{"quality.csv", quality_text(rows, OutputFormat::kCsv)},
                           {"quality.json", quality_text(rows, OutputFormat::kJson)}});
}

}  // namespace kvtwin
