// The report in Markdown, for pull requests.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

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
                         {"prefix_reuse", "prefix reuse"},
                         {"preemptions", "preemptions"},
                         {"gpu_pages_held_peak", "GPU pages held, peak"},
                         {"fragmentation_tail", "tail fragmentation"},
                         {"fragmentation_group", "group fragmentation"},
                         {"transfer_exposed_s", "transfers exposed, s"},
                         {"gpus", "GPUs"},
                         {"usd_per_hour", "$ per hour"},
                         {"usd_per_million_output_tokens", "$ per million output tokens"},
                         {"decisions", "decisions"}};

std::string cell(const Json& value) {
  if (value.is_number_float()) return fmt::format("{:.5g}", value.get<double>());
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string percent(double fraction) { return fmt::format("{:.1f} %", 100 * fraction); }

// "broken: 23254 ms, 465 % used".
std::string verdict(const ReportSlo& slo, const ReportSloValue& value) {
  if (!value.known) return "not known";
  const std::string figure = slo.figure.empty() ? percent(value.value) : fmt::format("{:.5g}", value.value);
  return fmt::format("{}: {}{}, {:.0f} % used", value.kept ? "kept" : "broken", figure,
                     slo.figure.ends_with("_ms") ? " ms" : "", 100 * value.use);
}

// "kept", "broken" or "not known" of all SLOs together.
std::string verdict(const std::vector<ReportSloValue>& values) {
  const auto broken = [](const ReportSloValue& one) { return one.known && !one.kept; };
  if (std::any_of(values.begin(), values.end(), broken)) return "broken";
  const auto kept = [](const ReportSloValue& one) { return one.known && one.kept; };
  return std::all_of(values.begin(), values.end(), kept) ? "kept" : "not known";
}

// Notes that several runs have appear once, with the names of the runs if they are not all.
std::string notes_text(const std::vector<ReportRun>& runs) {
  std::vector<std::pair<std::string, std::vector<std::string>>> notes;
  for (const ReportRun& run : runs) {
    for (const std::string& note : run.result.notes()) {
      auto found =
          std::find_if(notes.begin(), notes.end(), [&](const auto& one) { return one.first == note; });
      if (found == notes.end()) found = notes.insert(notes.end(), {note, {}});
      found->second.push_back(run.dir);
    }
  }
  std::string out;
  for (const auto& [note, dirs] : notes)
    out += dirs.size() == runs.size() ? fmt::format("\nNote: {}\n", note)
                                      : fmt::format("\n{}: {}\n", fmt::join(dirs, ", "), note);
  return out;
}

std::string runs_text(const Report& report) {
  const std::vector<ReportRun>& runs = report.runs;
  std::vector<Json> records;
  std::vector<std::string> names = {""};
  for (const ReportRun& run : runs) {
    records.push_back(Json::parse(run.summary));
    names.push_back(runs.size() > 1 ? run.dir : run.result.scenario());
  }
  std::string out = "## Runs\n\n" + markdown_head(names);
  for (size_t slo = 0; slo < report.slos.size(); ++slo) {
    std::vector<std::string> cells = {report.slos[slo].text};
    for (const ReportRun& run : runs)
      cells.push_back(slo < run.slos.size() ? verdict(report.slos[slo], run.slos[slo]) : "not known");
    out += markdown_line(cells);
  }
  for (const Row& row : kRows) {
    std::vector<std::string> cells = {row.label};
    for (const Json& record : records) {
      // Figures that a real server's files lack are 0 in a result, and empty here.
      const bool said =
          record.contains(row.key) && !(record.value("backend", "") == "measured" && record[row.key] == 0);
      const bool fraction = std::string_view(row.key) == "prefix_reuse";
      cells.push_back(!said ? "" : fraction ? percent(record[row.key].get<double>()) : cell(record[row.key]));
    }
    // A price is not known of every GPU.
    if (std::any_of(cells.begin() + 1, cells.end(), [](const std::string& one) { return !one.empty(); }))
      out += markdown_line(cells);
  }
  for (const ReportRun& run : runs) {
    if (run.limited_by.empty()) continue;
    out +=
        fmt::format("\n{} by {}.\n", runs.size() > 1 ? run.dir + " is limited" : "Limited", run.limited_by);
  }
  return out + notes_text(runs) + "\n";
}

std::string sweep_text(const ReportSweep& sweep, const std::vector<ReportSlo>& slos) {
  std::vector<std::string> metrics;
  for (const ReportSlo& slo : slos) {
    if (!slo.figure.empty()) metrics.push_back(slo.figure);
  }
  for (const char* name : {"output_tokens_per_s", "ttft_p99_ms", "tpot_p95_ms", "prefix_reuse", "preemptions",
                           "usd_per_million_output_tokens"}) {
    if (std::find(metrics.begin(), metrics.end(), name) == metrics.end()) metrics.emplace_back(name);
  }
  std::vector<std::string> names = sweep.axes;
  names.insert(names.end(), metrics.begin(), metrics.end());
  if (!slos.empty()) names.emplace_back("SLOs");
  std::string out = fmt::format("## {} {} of {}\n\n", sweep.points.size(),
                                plural(sweep.points.size(), "point"), sweep.dir) +
                    markdown_head(names);
  for (const ReportSweep::Point& point : sweep.points) {
    std::vector<std::string> cells = point.values;
    const Json figures = Json::parse(point.metrics);
    for (const std::string& name : metrics)
      cells.push_back(figures.contains(name) ? cell(figures[name]) : "");
    if (!slos.empty()) cells.push_back(verdict(point.slos));
    out += markdown_line(cells);
  }
  for (const ReportSweep::Failure& one : sweep.failures)
    out += fmt::format("\n{} {} failed: {}\n", one.points, plural(one.points, "point"), one.error);
  return out + (sweep.command.empty() ? "\n" : fmt::format("\n`{}`\n\n", sweep.command));
}

}  // namespace

std::string report_markdown(const Report& report) {
  std::string out = "# kvtwin report\n\n";
  for (const ReportEvidence& one : report.plans) out += plan_markdown(one);
  if (!report.runs.empty()) out += runs_text(report);
  for (const ReportSweep& sweep : report.sweeps) out += sweep_text(sweep, report.slos);
  for (const ReportEvidence& one : report.validations) out += validation_markdown(one);
  for (const ReportEvidence& one : report.qualities) out += quality_markdown(one);
  return out + fmt::format("`{}`\n", report.command);
}

}  // namespace kvtwin
