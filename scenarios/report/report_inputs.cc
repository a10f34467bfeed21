#include "scenarios/report/report_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "engine/base/plural.h"
#include "models/files/textproto.h"
#include "scenarios/app/results.h"
#include "scenarios/output/limiting.h"
#include "scenarios/output/metric_names.h"
#include "scenarios/output/run_setting.h"
#include "scenarios/output/sessions_in_flight.h"
#include "scenarios/output/summary.h"
#include "scenarios/report/report_evidence.h"
#include "scenarios/report/report_slos.h"
#ifdef KVTWIN_HAVE_SQLITE
#include "scenarios/sweep/folder.h"
#include "scenarios/sweep/index.h"
#endif

namespace kvtwin {
namespace fs = std::filesystem;
namespace {

// requests.csv of the largest traces is some tens of megabytes.
constexpr size_t kRequestsBytesMax = size_t{1} << 30;
constexpr size_t kHeadsBytesMax = size_t{1} << 26;

Result<std::string> read_heads(const std::string& path) {
  Result<std::string> text = read_text_file(path, kHeadsBytesMax);
  if (!text) return text;
  const auto json = nlohmann::json::parse(*text, nullptr, false);
  const auto number = [&](const char* name) {
    return json.contains(name) && json[name].is_number_unsigned() ? json[name].get<uint64_t>() : 0;
  };
  const uint64_t heads = json.is_object() ? number("layers") * number("kv_heads") : 0;
  for (const char* name : {"held", "needed"}) {
    if (heads > 0 && json.contains(name) && json[name].is_array() && json[name].size() == heads) continue;
    return make_error(path, fmt::format("has no {} of each head of each layer", name),
                      "run the scenario again");
  }
  return text;
}

// At most this many steps and transfers of timeline.json: more cannot be distinguished in one plot.
constexpr size_t kSpansMax = 4'000, kTimelineBytesMax = size_t{1} << 28;

Result<std::string> read_timeline(const std::string& path) {
  Result<std::string> text = read_text_file(path, kTimelineBytesMax);
  if (!text) return text;
  const auto json = nlohmann::json::parse(*text, nullptr, false);
  const auto problem = [&] {
    return make_error(path, "is not a timeline that this version of kvtwin writes",
                      "kvtwin run --timeline writes it");
  };
  if (!json.is_object() || !json.contains("traceEvents") || !json["traceEvents"].is_array()) return problem();
  std::vector<std::string> names;
  nlohmann::ordered_json spans = nlohmann::json::array();
  for (const auto& event : json["traceEvents"]) {
    if (!event.is_object() || event.value("ph", "") != "X") continue;
    for (const char* number : {"pid", "tid", "ts", "dur"}) {
      if (!event.contains(number) || !event[number].is_number()) return problem();
    }
    const int64_t row = event["tid"].get<int64_t>() - 1;
    if (row < 0 || row > 2 || spans.size() == kSpansMax) continue;
    const std::string name = event.value("name", "");
    const auto known = std::find(names.begin(), names.end(), name);
    const auto number = known - names.begin();
    if (known == names.end()) names.push_back(name);
    const double from = event["ts"].get<double>() / 1e6, to = from + event["dur"].get<double>() / 1e6;
    const bool counted = event.contains("args") && event["args"].is_object() &&
                         event["args"].contains("pages") && event["args"]["pages"].is_number();
    spans.push_back({event["pid"].get<int64_t>(), row, number, from, to,
                     counted ? event["args"]["pages"].get<double>() : 0.0});
  }
  if (spans.empty()) return std::string();
  nlohmann::ordered_json out;
  out["names"] = names;
  out["spans"] = std::move(spans);
  return out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

// What the header of a page states about a run.
ReportSetting setting_of(const v1::RunResult& result) {
  const std::optional<RunSetting> setting = run_setting(result);
  if (!setting) return {};
  std::string engines;
  for (const RunSetting::Engines& kind : setting->engines)
    engines += fmt::format("{}{} × TP {} × {} {}", engines.empty() ? "" : " + ", kind.node, kind.gpus,
                           kind.count, plural(kind.count, "engine"));
  ReportSetting out = {{"model", setting->model}, {"GPU", engines}};
  if (!setting->routing.empty()) out.emplace_back("routing", setting->routing);
  out.emplace_back("trace", setting->trace);
  out.emplace_back("KV room", grouped(result.pages().gpu_tokens()) + " tokens");
  if (result.has_price())
    out.emplace_back("price", fmt::format("{} {}, {:.2f} $/h{}", result.price().gpus(),
                                          plural(result.price().gpus(), "GPU"), result.price().usd_per_hour(),
                                          result.price().assumed() ? " (assumed)" : ""));
  return out;
}

// What the run in `dir` has in common with runs that differ from it in `fields`; nothing if there is no such
// run.
ReportSetting common_setting(const std::string& dir, const std::vector<std::string>& fields) {
  const Result<v1::RunResult> result = read_result(dir);
  if (!result) return {};
  ReportSetting out = setting_of(*result);
  const auto varied = [&](std::initializer_list<std::string_view> parts) {
    return std::any_of(fields.begin(), fields.end(), [&](const std::string& field) {
      return std::any_of(parts.begin(), parts.end(),
                         [&](std::string_view part) { return field.starts_with(part); });
    });
  };
  std::erase_if(out, [&](const auto& fact) {
    if (fact.first == "model") return varied({"model"});
    if (fact.first == "trace") return varied({"trace"});
    if (fact.first == "KV room") return varied({"model", "hardware", "engines", "memory", "policies"});
    return varied({"hardware", "engines"});
  });
  return out;
}

// A plan's points are folders of runs; each candidate names the fields that it chooses.
ReportSetting setting_of_plan(const ReportEvidence& plan) {
  const auto json = nlohmann::json::parse(plan.json);
  std::vector<std::string> fields;
  for (const auto& candidate : json["candidates"]) {
    if (!candidate.contains("choices") || !candidate["choices"].is_object()) continue;
    for (const auto& [field, value] : candidate["choices"].items()) fields.push_back(field);
  }
  std::vector<std::string> dirs;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(fs::path(plan.dir) / "points", ignored))
    dirs.push_back(entry.path().string());
  if (dirs.empty()) return {};
  ReportSetting out = common_setting(*std::min_element(dirs.begin(), dirs.end()), fields);
  // A plan has prices of its own (--price).
  std::erase_if(out, [](const auto& fact) { return fact.first == "price"; });
  return out;
}

Result<ReportRun> read_run(const std::string& dir) {
  Result<v1::RunResult> result = read_result(dir);
  if (!result) return tl::unexpected<Error>(result.error());
  const std::string path = dir + "/requests.csv";
  const Result<std::string> text = read_text_file(path, kRequestsBytesMax);
  if (!text) return tl::unexpected<Error>(text.error());
  Result<RequestsTable> requests = read_requests(*text, path);
  if (!requests) return tl::unexpected<Error>(requests.error());
  ReportRun out;
  out.dir = dir;
  out.summary = format_summary(*result, OutputFormat::kJsonl, {});
  out.setting = setting_of(*result);
  if (result->backend() == "sim") out.limited_by = limiting(*result).sentence;
  if (const std::string note = in_flight_note(*result); !note.empty()) result->add_notes(note);
  out.result = std::move(*result);
  out.requests = std::move(*requests);
  std::error_code ignored;
  if (fs::exists(fs::path(dir) / "timeline.json", ignored)) {
    Result<std::string> timeline = read_timeline(dir + "/timeline.json");
    if (!timeline) return tl::unexpected<Error>(timeline.error());
    out.timeline = std::move(*timeline);
  }
  if (fs::exists(fs::path(dir) / "tools.csv", ignored)) {
    const Result<std::string> tools = read_text_file(dir + "/tools.csv", kRequestsBytesMax);
    if (!tools) return tl::unexpected<Error>(tools.error());
    Result<ToolsTable> table = read_tools(*tools, dir + "/tools.csv", out.requests, kReportRequestsMax);
    if (!table) return tl::unexpected<Error>(table.error());
    out.tools = std::move(*table);
  }
  if (!fs::exists(fs::path(dir) / "heads.json", ignored)) return out;
  Result<std::string> heads = read_heads(dir + "/heads.json");
  if (!heads) return tl::unexpected<Error>(heads.error());
  out.heads = std::move(*heads);
  return out;
}

Result<ReportSweep> read_sweep(const std::string& dir) {
#ifdef KVTWIN_HAVE_SQLITE
  Result<IndexedSweep> index = read_index(dir + "/index.sqlite");
  if (!index) return tl::unexpected<Error>(index.error());
  ReportSweep out{dir, {}, std::move(index->axes), {}};
  for (IndexedSweep::Point& point : index->points)
    out.points.push_back(
        {std::move(point.values), std::move(point.metrics), dir + "/points/" + point.key, {}});
  for (IndexedSweep::Failure& one : index->failures)
    out.failures.push_back({one.points, std::move(one.error)});
  if (out.points.empty())
    return make_error(dir, "is a sweep without a finished point",
                      out.failures.empty() ? "kvtwin sweep continues it"
                                           : "its first error: " + out.failures.front().error);
  out.command = sweep_command(dir);
  out.setting = common_setting(out.points.front().dir, out.axes);
  return out;
#else
  return make_error(dir, "is a sweep, and this build cannot read its index",
                    "install libsqlite3-dev and configure again");
#endif
}

}  // namespace

Result<Report> read_report(const std::vector<std::string>& dirs, const std::string& command,
                           const std::vector<std::string>& slos) {
  Report out;
  out.command = command;
  for (const MetricName& metric : metric_names())
    out.metrics.push_back({metric.name, metric.unit, metric.definition});
  std::error_code ignored;
  for (const std::string& dir : dirs) {
    bool found = true;
    if (fs::exists(fs::path(dir) / "run.binpb", ignored)) {
      Result<ReportRun> run = read_run(dir);
      if (!run) return tl::unexpected<Error>(run.error());
      out.runs.push_back(std::move(*run));
    } else if (fs::exists(fs::path(dir) / "index.sqlite", ignored)) {
      Result<ReportSweep> sweep = read_sweep(dir);
      if (!sweep) return tl::unexpected<Error>(sweep.error());
      out.sweeps.push_back(std::move(*sweep));
    } else {
      found = false;
    }
    for (const auto& [kind, list] : {std::pair{EvidenceKind::kValidation, &out.validations},
                                     {EvidenceKind::kQuality, &out.qualities},
                                     {EvidenceKind::kPlan, &out.plans}}) {
      const std::string file = evidence_file(dir, kind);
      if (file.empty()) continue;
      Result<ReportEvidence> evidence = read_evidence(file, kind);
      if (!evidence) return tl::unexpected<Error>(evidence.error());
      if (kind == EvidenceKind::kPlan) evidence->setting = setting_of_plan(*evidence);
      list->push_back(std::move(*evidence));
      found = true;
    }
    if (!found)
      return make_error(
          dir,
          "holds no run (run.binpb), sweep (index.sqlite), plan.json, validation.json, quality.json or "
          "quality.csv",
          "a folder that kvtwin run, sweep, plan, validate or evaluate wrote with --out, or such a file");
  }
  if (const Result<void> ok = judge_report(slos, &out); !ok) return tl::unexpected<Error>(ok.error());
  return out;
}

}  // namespace kvtwin
