// A sweep's table, for people and for programs.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "scenarios/output/csv_cell.h"
#include "scenarios/sweep/sweep.h"

namespace kvtwin {
namespace {

using Cells = std::vector<std::string>;

std::string metric(const SweepRow& row, const std::string& name) {
  for (const auto& [known, value] : row.metrics) {
    if (known == name) return value;
  }
  return "";
}

// In order of first appearance.
std::vector<std::string> metric_names(const std::vector<SweepRow>& rows) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const SweepRow& row : rows) {
    for (const auto& [name, value] : row.metrics) {
      if (seen.insert(name).second) names.push_back(name);
    }
  }
  return names;
}

// JSON strings without quotes, so that a spreadsheet shows the value.
std::string plain(const std::string& json) {
  if (json.empty() || json.front() != '"') return json;
  return nlohmann::json::parse(json).get<std::string>();
}

std::string csv(const SweepSpec& spec, const std::vector<SweepRow>& rows) {
  const std::vector<std::string> names = metric_names(rows);
  std::string out = "point";
  for (const Axis& axis : spec.axes) out += fmt::format(",{}", csv_cell(axis.field));
  out += ",key,state";
  for (const std::string& name : names) out += fmt::format(",{}", csv_cell(name));
  out += ",error\n";
  for (const SweepRow& row : rows) {
    out += fmt::format("{}", row.point);
    for (const std::string& value : row.values) out += fmt::format(",{}", csv_cell(value));
    out += fmt::format(",{},{}", row.key, name_of(row.state));
    for (const std::string& name : names) out += fmt::format(",{}", csv_cell(plain(metric(row, name))));
    out += fmt::format(",{}\n", csv_cell(row.error));
  }
  return out;
}

std::vector<nlohmann::ordered_json> objects(const SweepSpec& spec, const std::vector<SweepRow>& rows) {
  std::vector<nlohmann::ordered_json> out;
  for (const SweepRow& row : rows) {
    nlohmann::ordered_json& line = out.emplace_back();
    line["point"] = row.point;
    for (size_t a = 0; a < spec.axes.size(); ++a) line["axes"][spec.axes[a].field] = row.values[a];
    line["key"] = row.key;
    line["state"] = name_of(row.state);
    for (const auto& [name, value] : row.metrics) line["metrics"][name] = nlohmann::json::parse(value);
    if (!row.error.empty()) line["error"] = row.error;
  }
  return out;
}

std::string dump(const nlohmann::ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string json_lines(const SweepSpec& spec, const std::vector<SweepRow>& rows) {
  std::string out;
  for (const nlohmann::ordered_json& line : objects(spec, rows)) out += dump(line, -1);
  return out;
}

// Numbers in a short form for people.
std::string short_number(const std::string& json) {
  char* end = nullptr;
  const double value = std::strtod(json.c_str(), &end);
  if (json.empty() || *end != '\0') return plain(json);
  return json.find_first_of(".e") == std::string::npos ? json : fmt::format("{:.5g}", value);
}

std::string table(const SweepSpec& spec, const std::vector<SweepRow>& rows,
                  const std::vector<std::string>& columns) {
  std::vector<Cells> lines(1);
  for (const Axis& axis : spec.axes) lines[0].push_back(axis.field);
  lines[0].push_back("state");
  for (const std::string& column : columns) lines[0].push_back(column);
  for (const SweepRow& row : rows) {
    Cells& line = lines.emplace_back(row.values);
    line.push_back(name_of(row.state));
    for (const std::string& column : columns) line.push_back(short_number(metric(row, column)));
  }
  std::vector<size_t> widths(lines[0].size());
  for (const Cells& line : lines) {
    for (size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], line[c].size());
  }
  std::string out;
  for (size_t l = 0; l < lines.size(); ++l) {
    std::string text;
    for (size_t c = 0; c < lines[l].size(); ++c)
      text += fmt::format("{}{:>{}}", c == 0 ? "" : "  ", lines[l][c], widths[c]);
    if (l > 0 && !rows[l - 1].error.empty()) text += "  " + rows[l - 1].error;
    out += text + "\n";
  }
  return out;
}

}  // namespace

std::string format_sweep(const SweepSpec& spec, const std::vector<SweepRow>& rows, OutputFormat format,
                         const std::vector<std::string>& columns) {
  if (format == OutputFormat::kCsv) return csv(spec, rows);
  if (format == OutputFormat::kTable) return table(spec, rows, columns);
  if (format == OutputFormat::kJson) return dump(objects(spec, rows), 2);
  return json_lines(spec, rows);
}

std::vector<std::string> axes_without_effect(const SweepSpec& spec, const std::vector<SweepRow>& rows) {
  // What names a run, not how it went.
  const auto result_of = [](const SweepRow& row) {
    std::string out;
    for (const auto& [name, value] : row.metrics) {
      if (name != "inputs" && name != "seed") out += name + "=" + value + "\n";
    }
    return out;
  };
  std::vector<std::string> out;
  for (size_t axis = 0; axis < spec.axes.size(); ++axis) {
    std::map<SweepPoint, std::string> first;
    bool compared = false, differ = false;
    for (const SweepRow& row : rows) {
      if (row.state != PointState::kDone || axis >= row.values.size()) continue;
      SweepPoint others = row.values;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(axis));
      const auto [found, is_new] = first.emplace(std::move(others), result_of(row));
      compared = compared || !is_new;
      differ = differ || (!is_new && found->second != result_of(row));
    }
    if (compared && !differ) out.push_back(spec.axes[axis].field);
  }
  return out;
}

std::vector<std::string> unknown_columns(const std::vector<SweepRow>& rows,
                                         const std::vector<std::string>& columns) {
  const std::vector<std::string> names = metric_names(rows);
  std::vector<std::string> out;
  for (const std::string& column : columns) {
    if (!names.empty() && std::find(names.begin(), names.end(), column) == names.end()) out.push_back(column);
  }
  return out;
}

}  // namespace kvtwin
