#include "reports/page/markdown_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace kvtwin {
namespace {

using Json = nlohmann::ordered_json;

// A field that a file of another version may lack; 0 if it does.
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
    std::replace(cell.begin(), cell.end(), '|', '/');  // a bar would end the table cell
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
      markdown_head({"", "limits", "same decisions", "steps", "step time, median error", "P95"});
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

namespace {

// A policy set with one budget: the table cells of its tasks, and means over them.
struct QualitySet {
  std::string policy;
  double budget = 0, right = 0, kept = 0, read = 0;
  double speed = 0;  // simulated tokens/s; 0: not simulated
  std::map<std::string, std::string> cells;

  // An oracle uses information that a server does not have: it is a bound, and never on the front.
  bool bound() const { return policy.ends_with("_oracle"); }
  // `simulated`: compare simulated throughput instead of the bytes read, which stand for it otherwise.
  bool beats(const QualitySet& other, bool simulated) const {
    const double dear = simulated ? -speed : read, dear_other = simulated ? -other.speed : other.read;
    return right >= other.right && kept <= other.kept && dear <= dear_other &&
           (right > other.right || kept < other.kept || dear < dear_other);
  }
};

std::string fraction_said(const Json& row) {
  std::string out = fmt::format("{:.1f} %", 100 * number(row, "accuracy"));
  if (row.contains("accuracy_low") && row.contains("accuracy_high"))
    out += fmt::format(" [{:.0f} {:.0f}]", 100 * number(row, "accuracy_low"),
                       100 * number(row, "accuracy_high"));
  return out;
}

std::vector<QualitySet> quality_sets(const Json& all, std::vector<std::string>* tasks) {
  std::vector<QualitySet> out;
  for (const Json& row : all) {
    if (!text(row, "refused").empty()) continue;
    const std::string task = text(row, "task");
    if (std::find(tasks->begin(), tasks->end(), task) == tasks->end()) tasks->push_back(task);
    auto set = std::find_if(out.begin(), out.end(), [&](const QualitySet& one) {
      return one.policy == text(row, "policy") && one.budget == number(row, "budget");
    });
    if (set == out.end())
      set = out.insert(out.end(), {text(row, "policy"), number(row, "budget"), 0, 0, 0, 0, {}});
    set->cells[task] = fraction_said(row);
    set->right += number(row, "accuracy");
    set->kept += number(row, "kv_bytes_mean");
    set->speed = std::max(set->speed, number(row, "simulated_tokens_per_s"));
    set->read += number(row, row.contains("kv_read_bytes_mean") ? "kv_read_bytes_mean" : "kv_bytes_mean");
  }
  for (QualitySet& set : out) {
    const auto count = static_cast<double>(set.cells.size());
    set.right /= count, set.kept /= count, set.read /= count;
  }
  return out;
}

}  // namespace

std::string quality_markdown(const ReportEvidence& evidence) {
  std::vector<std::string> tasks;
  const std::vector<QualitySet> sets = quality_sets(Json::parse(evidence.json), &tasks);
  std::vector<std::string> names = {"", "KV entries"};
  names.insert(names.end(), tasks.begin(), tasks.end());
  names.insert(names.end(), {"KV retained, MB", "KV read per token, MB"});
  const bool simulated =
      std::any_of(sets.begin(), sets.end(), [](const QualitySet& set) { return set.speed > 0; });
  if (simulated) names.emplace_back("tokens/s, simulated");
  names.emplace_back("front");
  std::string out = fmt::format("## Correct answers: {}\n\n", evidence.dir) + markdown_head(names);
  for (const QualitySet& set : sets) {
    std::vector<std::string> cells = {set.policy, set.budget > 0 ? fmt::format("{:.0f}", set.budget) : "all"};
    for (const std::string& task : tasks)
      cells.push_back(set.cells.contains(task) ? set.cells.at(task) : "-");
    cells.push_back(fmt::format("{:.3f}", set.kept / 1e6));
    cells.push_back(fmt::format("{:.3f}", set.read / 1e6));
    if (simulated) cells.push_back(set.speed > 0 ? fmt::format("{:.0f}", set.speed) : "-");
    // Means over different tasks are not comparable.
    const bool whole = set.cells.size() == tasks.size() && !set.bound() && (!simulated || set.speed > 0);
    const bool beaten = std::any_of(sets.begin(), sets.end(), [&](const QualitySet& other) {
      return other.cells.size() == tasks.size() && !other.bound() && other.beats(set, simulated);
    });
    cells.push_back(!whole ? "-" : beaten ? "" : "*");
    out += markdown_line(std::move(cells));
  }
  return out + fmt::format(
                   "\nfront: ran all tasks, and no other set has as many correct answers on average with no "
                   "more bytes retained {}. Oracles know the answer and are left out.\n\n",
                   simulated ? "and with as much throughput" : "and read");
}

std::string plan_markdown(const ReportEvidence& evidence) {
  const Json plan = Json::parse(evidence.json);
  std::string out = fmt::format("## Plan {}\n\n", evidence.dir);
  for (const Json& sentence : plan["answer"]) {
    if (sentence.is_string()) out += sentence.get<std::string>() + "\n";
  }
  out += '\n';
  for (size_t row = 0; row < plan["table"].size(); ++row) {
    std::vector<std::string> cells;
    for (const Json& cell : plan["table"][row])
      cells.push_back(cell.is_string() ? cell.get<std::string>() : "");
    out += row == 0 ? markdown_head(cells) : markdown_line(cells);
  }
  return out + "\n";
}

}  // namespace kvtwin
