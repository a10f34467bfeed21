#include "reports/markdown_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace kvtwin {
namespace {

using Json = nlohmann::ordered_json;

// What a file of another version may lack is 0, or nothing.
double number(const Json& in, const char* name) {
  return in.contains(name) && in[name].is_number() ? in[name].get<double>() : 0;
}
std::string text(const Json& in, const char* name) {
  return in.contains(name) && in[name].is_string() ? in[name].get<std::string>() : "";
}

// "all within", "3 deviate (known)", "1 outside".
std::string verdicts(const Json& figures) {
  size_t known = 0, outside = 0;
  for (const Json& figure : figures) {
    const std::string verdict = text(figure, "verdict");
    known += verdict == "known";
    outside += verdict == "outside";
  }
  if (outside > 0) return fmt::format("{} outside", outside);
  return known > 0 ? fmt::format("{} deviate (known)", known) : "all within";
}

}  // namespace

std::string markdown_line(std::vector<std::string> cells) {
  std::string out = "|";
  for (std::string& cell : cells) {
    std::replace(cell.begin(), cell.end(), '|', '/');  // it would end the cell
    out += fmt::format(" {} |", cell);
  }
  return out + "\n";
}

std::string markdown_head(const std::vector<std::string>& cells) {
  std::vector<std::string> rule(cells.size(), "---:");
  rule[0] = "---";
  return markdown_line(cells) + markdown_line(rule);
}

std::string validation_markdown(const ReportEvidence& evidence) {
  const Json all = Json::parse(evidence.json);
  std::string out =
      fmt::format("## Validation: {}\n\n", evidence.dir) +
      markdown_head({"", "limits", "replayed alike", "steps", "step time, median error", "P95"});
  for (const Json& one : all["scenarios"]) {
    const Json replayed = one.value("replayed", Json::array());
    const auto same = std::count_if(replayed.begin(), replayed.end(),
                                    [](const Json& run) { return run.value("same", false); });
    const Json steps = one["open_loop"].value("steps", Json::object());
    out += markdown_line({text(one, "scenario"), verdicts(one["figures"]),
                          fmt::format("{} of {}", same, replayed.size()),
                          fmt::format("{:.0f}", number(steps, "count")),
                          fmt::format("{:.2f} %", number(steps, "median_percent")),
                          fmt::format("{:.2f} %", number(steps, "p95_percent"))});
  }
  return out + "\n";
}

std::string quality_markdown(const ReportEvidence& evidence) {
  const Json all = Json::parse(evidence.json);
  std::vector<std::string> tasks;
  std::vector<std::pair<std::string, double>> sets;
  std::map<std::pair<std::string, double>, std::map<std::string, std::string>> right;
  for (const Json& row : all) {
    if (!text(row, "refused").empty()) continue;
    const std::string task = text(row, "task");
    const std::pair set{text(row, "policy"), number(row, "budget")};
    if (std::find(tasks.begin(), tasks.end(), task) == tasks.end()) tasks.push_back(task);
    if (!right.contains(set)) sets.push_back(set);
    right[set][task] = fmt::format("{:.1f} %", 100 * number(row, "accuracy"));
    if (row.contains("accuracy_low") && row.contains("accuracy_high"))
      right[set][task] += fmt::format(" [{:.0f} {:.0f}]", 100 * number(row, "accuracy_low"),
                                      100 * number(row, "accuracy_high"));
  }
  std::vector<std::string> names = {"", "cells"};
  names.insert(names.end(), tasks.begin(), tasks.end());
  std::string out = fmt::format("## Right answers: {}\n\n", evidence.dir) + markdown_head(names);
  for (const auto& set : sets) {
    std::vector<std::string> cells = {set.first, set.second > 0 ? fmt::format("{:.0f}", set.second) : "all"};
    for (const std::string& task : tasks) cells.push_back(right[set][task]);
    out += markdown_line(std::move(cells));
  }
  return out + "\n";
}

}  // namespace kvtwin
