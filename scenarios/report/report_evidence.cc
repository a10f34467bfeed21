#include "scenarios/report/report_evidence.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "models/files/textproto.h"
#include "reports/page/csv_records.h"

namespace kvtwin {
namespace fs = std::filesystem;
namespace {

constexpr size_t kEvidenceBytesMax = size_t{1} << 26;

bool all_have(const nlohmann::json& rows, std::initializer_list<const char*> names) {
  return rows.is_array() && std::all_of(rows.begin(), rows.end(), [&](const nlohmann::json& row) {
           return std::all_of(names.begin(), names.end(),
                              [&](const char* name) { return row.is_object() && row.contains(name); });
         });
}

// A column that a page draws, and its type.
struct QualityColumn {
  const char* name;
  bool number, needed;
};
constexpr QualityColumn kQuality[] = {{"policy", false, true},
                                      {"task", false, true},
                                      {"refused", false, false},
                                      {"budget", true, true},
                                      {"accuracy", true, true},
                                      {"accuracy_low", true, false},
                                      {"accuracy_high", true, false},
                                      {"kv_bytes_mean", true, true},
                                      {"kv_fraction", true, false},
                                      {"kv_read_bytes_mean", true, false},
                                      {"simulated_tokens_per_s", true, false},
                                      {"simulated_load", false, false}};

bool number(const std::string& text, double* value) {
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return failed == std::errc{} && end == text.data() + text.size() && std::isfinite(*value);
}

// A refused row of quality.csv has empty fields instead of figures.
Result<std::string> quality_json(const std::string& path, std::string_view csv) {
  std::vector<std::string> cells;
  take_record(&csv, &cells);
  const size_t width = cells.size();
  std::vector<std::pair<QualityColumn, size_t>> columns;
  for (const QualityColumn& column : kQuality) {
    const auto at = std::find(cells.begin(), cells.end(), column.name);
    if (at != cells.end()) {
      columns.emplace_back(column, static_cast<size_t>(at - cells.begin()));
    } else if (column.needed) {
      return make_error(path + ":1", fmt::format("has no column {}", column.name),
                        "give the quality.csv of kvtwin evaluate --out");
    }
  }
  nlohmann::ordered_json rows = nlohmann::json::array();
  for (uint64_t line = 2; take_record(&csv, &cells); ++line) {
    const auto problem = [&](std::string what) {
      return make_error(fmt::format("{}:{}", path, line), std::move(what), "kvtwin evaluate --out writes it");
    };
    if (cells.size() != width)
      return problem(fmt::format("has {} columns, the first line {}", cells.size(), width));
    nlohmann::ordered_json out;
    for (const auto& [column, at] : columns) {
      double value = 0;
      if (!column.number) {
        out[column.name] = cells[at];
      } else if (!cells[at].empty() && !number(cells[at], &value)) {
        return problem(fmt::format("{} is \"{}\", not a number", column.name, cells[at]));
      } else if (!cells[at].empty() || column.needed) {
        out[column.name] = value;
      }
    }
    rows.push_back(std::move(out));
  }
  return rows.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

bool is_plan(const nlohmann::json& json) {
  const auto is = [&](const char* name, auto type) { return json.contains(name) && (json[name].*type)(); };
  if (!json.is_object() || !is("load", &nlohmann::json::is_string) || !is("need", &nlohmann::json::is_number))
    return false;
  if (!is("answer", &nlohmann::json::is_array) || !is("table", &nlohmann::json::is_array)) return false;
  const nlohmann::json& table = json["table"];
  const auto is_list = [](const nlohmann::json& row) { return row.is_array(); };
  return !table.empty() && std::all_of(table.begin(), table.end(), is_list) && json.contains("candidates") &&
         all_have(json["candidates"], {"name", "usd_per_hour"});
}

// Whether `json` is such evidence, and the command that writes it.
std::pair<bool, const char*> is_evidence(const nlohmann::json& json, EvidenceKind kind) {
  switch (kind) {
    case EvidenceKind::kPlan:
      return {is_plan(json), "plan"};
    case EvidenceKind::kQuality:
      return {all_have(json, {"policy", "budget", "task", "accuracy", "kv_bytes_mean"}), "evaluate"};
    case EvidenceKind::kValidation:
      break;
  }
  return {json.is_object() && json.contains("scenarios") &&
              all_have(json["scenarios"], {"scenario", "open_loop", "figures"}),
          "validate"};
}

}  // namespace

std::string evidence_file(const std::string& path, EvidenceKind kind) {
  std::error_code ignored;
  const auto is = [&](const fs::path& file) { return fs::is_regular_file(file, ignored); };
  const fs::path at = path;
  if (is(at)) {
    const bool quality = at.extension() == ".csv" || at.filename() == "quality.json";
    const bool plan = at.filename() == "plan.json";
    const bool validation = at.extension() == ".json" && !quality && !plan;
    const bool asked = kind == EvidenceKind::kQuality ? quality
                       : kind == EvidenceKind::kPlan  ? plan
                                                      : validation;
    return asked ? path : "";
  }
  if (kind == EvidenceKind::kPlan) return is(at / "plan.json") ? path + "/plan.json" : "";
  if (kind == EvidenceKind::kValidation) return is(at / "validation.json") ? path + "/validation.json" : "";
  for (const char* const name : {"quality.json", "quality.csv"}) {
    if (is(at / name)) return path + "/" + name;
  }
  return "";
}

Result<ReportEvidence> read_evidence(const std::string& file, EvidenceKind kind) {
  const fs::path path = file;
  Result<std::string> text = read_text_file(file, kEvidenceBytesMax);
  if (text && path.extension() == ".csv") text = quality_json(file, *text);
  if (!text) return tl::unexpected<Error>(text.error());
  const auto json = nlohmann::json::parse(*text, nullptr, false);
  const auto [good, writer] = is_evidence(json, kind);
  if (!good)
    return make_error(file, "was not written by this version of kvtwin",
                      fmt::format("kvtwin {} --out writes it", writer));
  const bool named = path.filename() == "validation.json" || path.filename() == "quality.json" ||
                     path.filename() == "quality.csv" || path.filename() == "plan.json";
  return ReportEvidence{named ? path.parent_path().string() : file, std::move(*text), {}};
}

}  // namespace kvtwin
