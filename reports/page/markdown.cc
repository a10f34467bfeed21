// The report in Markdown, for pull requests.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/base/plural.h"
#include "reports/page/markdown_tables.h"
#include "reports/page/report.h"

namespace kvtwin {
namespace {

using Json = nlohmann::ordered_json;

struct Row {
  const char* key;
  const char* label;
};
constexpr Row kRows[] = {{"requests_finished", "requests finished"},
                         {"output_tokens_per_s", "output tokens/s"},
                         {"ttft_p50_ms", "TTFT median, ms"},
                         {"ttft_p99_ms", "TTFT P99, ms"},
                         {"tpot_p50_ms", "TPOT median, ms"},
                         {"tpot_p99_ms", "TPOT P99, ms"},
                         {"e2e_p99_ms", "latency P99, ms"},
                         {"preemptions", "preemptions"},
                         {"gpu_pages_held_peak", "GPU pages held, peak"},
                         {"fragmentation_tail", "tail fragmentation"},
                         {"fragmentation_group", "group fragmentation"},
                         {"transfer_exposed_s", "transfers exposed, s"},
                         {"decisions", "decisions"}};

std::string cell(const Json& value) {
  if (value.is_number_float()) return fmt::format("{:.5g}", value.get<double>());
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string runs_text(const std::vector<ReportRun>& runs) {
  std::vector<Json> records;
  std::vector<std::string> names = {""};
  for (const ReportRun& run : runs) {
    records.push_back(Json::parse(run.summary));
    names.push_back(runs.size() > 1 ? run.dir : run.result.scenario());
  }
  std::string out = "## Runs\n\n" + markdown_head(names);
  for (const Row& row : kRows) {
    std::vector<std::string> cells = {row.label};
    for (const Json& record : records) {
      // Figures that a real server's files lack are 0 in a result, and empty here.
      const bool said =
          record.contains(row.key) && !(record.value("backend", "") == "measured" && record[row.key] == 0);
      cells.push_back(said ? cell(record[row.key]) : "");
    }
    out += markdown_line(cells);
  }
  for (const ReportRun& run : runs) {
    for (const std::string& note : run.result.notes()) out += fmt::format("\n{}: {}\n", run.dir, note);
  }
  return out + "\n";
}

std::string sweep_text(const ReportSweep& sweep) {
  constexpr const char* kMetrics[] = {"output_tokens_per_s", "ttft_p99_ms", "tpot_p95_ms", "preemptions"};
  std::vector<std::string> names = sweep.axes;
  names.insert(names.end(), std::begin(kMetrics), std::end(kMetrics));
  std::string out = fmt::format("## {} {} of {}\n\n", sweep.points.size(),
                                plural(sweep.points.size(), "point"), sweep.dir) +
                    markdown_head(names);
  for (const ReportSweep::Point& point : sweep.points) {
    std::vector<std::string> cells = point.values;
    const Json metrics = Json::parse(point.metrics);
    for (const char* name : kMetrics) cells.push_back(metrics.contains(name) ? cell(metrics[name]) : "");
    out += markdown_line(cells);
  }
  return out + "\n";
}

}  // namespace

std::string report_markdown(const Report& report) {
  std::string out = "# kvtwin report\n\n";
  for (const ReportEvidence& one : report.plans) out += plan_markdown(one);
  if (!report.runs.empty()) out += runs_text(report.runs);
  for (const ReportSweep& sweep : report.sweeps) out += sweep_text(sweep);
  for (const ReportEvidence& one : report.validations) out += validation_markdown(one);
  for (const ReportEvidence& one : report.qualities) out += quality_markdown(one);
  return out + fmt::format("`{}`\n", report.command);
}

}  // namespace kvtwin
