#include "scenarios/report_inputs.h"

#include <fmt/format.h>

#include <filesystem>

#include "models/textproto.h"
#include "scenarios/results.h"
#include "scenarios/summary.h"
#ifdef KVTWIN_HAVE_SQLITE
#include "scenarios/sweep/index.h"
#endif

namespace kvtwin {
namespace fs = std::filesystem;
namespace {

// calls.csv of the largest traces is some tens of megabytes.
constexpr size_t kCallsBytesMax = size_t{1} << 30;

Result<ReportRun> read_run(const std::string& dir) {
  Result<v1::RunResult> result = read_result(dir);
  if (!result) return tl::unexpected<Mistake>(result.error());
  const std::string path = dir + "/calls.csv";
  const Result<std::string> text = read_text_file(path, kCallsBytesMax);
  if (!text) return tl::unexpected<Mistake>(text.error());
  Result<CallsTable> calls = read_calls(*text, path);
  if (!calls) return tl::unexpected<Mistake>(calls.error());
  std::string summary = format_summary(*result, OutputFormat::kJsonl, {});
  return ReportRun{dir, std::move(*result), std::move(summary), std::move(*calls)};
}

Result<ReportSweep> read_sweep(const std::string& dir) {
#ifdef KVTWIN_HAVE_SQLITE
  Result<IndexedSweep> index = read_index(dir + "/index.sqlite");
  if (!index) return tl::unexpected<Mistake>(index.error());
  ReportSweep out{dir, std::move(index->axes), {}};
  for (IndexedSweep::Point& point : index->points)
    out.points.push_back({std::move(point.values), std::move(point.metrics)});
  if (out.points.empty())
    return mistake(dir, "is a sweep without a finished point", "kvtwin sweep goes on with it");
  return out;
#else
  return mistake(dir, "is a sweep, and this build cannot read its index",
                 "install libsqlite3-dev and configure again");
#endif
}

}  // namespace

Result<Report> read_report(const std::vector<std::string>& dirs, const std::string& command) {
  Report out;
  out.command = command;
  std::error_code ignored;
  for (const std::string& dir : dirs) {
    if (fs::exists(fs::path(dir) / "run.binpb", ignored)) {
      Result<ReportRun> run = read_run(dir);
      if (!run) return tl::unexpected<Mistake>(run.error());
      out.runs.push_back(std::move(*run));
    } else if (fs::exists(fs::path(dir) / "index.sqlite", ignored)) {
      Result<ReportSweep> sweep = read_sweep(dir);
      if (!sweep) return tl::unexpected<Mistake>(sweep.error());
      out.sweeps.push_back(std::move(*sweep));
    } else {
      return mistake(dir, "holds neither a run (run.binpb) nor a sweep (index.sqlite)",
                     "a folder that kvtwin run --out or kvtwin sweep --out made");
    }
  }
  return out;
}

}  // namespace kvtwin
