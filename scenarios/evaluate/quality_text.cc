// Rows of an evaluation as files and tables.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "scenarios/evaluate/evaluate.h"
#include "scenarios/output/csv_cell.h"

namespace kvtwin {
namespace {

using Json = nlohmann::ordered_json;

double fraction(uint64_t part, uint64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

// Losses of the policy set that retains everything, by task.
std::map<std::string, double> full_losses(const std::vector<QualityRow>& rows) {
  std::map<std::string, double> out;
  for (const QualityRow& row : rows) {
    if (row.policy == "full" && row.refused.empty()) out[row.task] = row.answers.loss;
  }
  return out;
}

Json record(const QualityRow& row, const std::map<std::string, double>& full) {
  Json out;
  out["policy"] = row.policy;
  out["budget"] = row.budget;
  out["task"] = row.task;
  out["refused"] = row.refused;
  const AnswerTotals& a = row.answers;
  const Interval range = wilson(a.right, a.questions);
  out["questions"] = a.questions;
  out["answered"] = a.answered;
  out["right"] = a.right;
  const auto measured = [&](double value) { return row.refused.empty() ? Json(value) : Json(); };
  out["accuracy"] = measured(fraction(a.right, a.questions));
  out["accuracy_low"] = measured(range.low);
  out["accuracy_high"] = measured(range.high);
  out["right_permuted"] = a.right_permuted;
  out["answer_tokens"] = a.tokens;
  out["token_loss"] = a.loss;
  const auto base = full.find(row.task);
  out["token_loss_above_full"] = base == full.end() ? Json() : Json(a.loss - base->second);
  out["prompt_tokens_mean"] = row.prompt_mean;
  out["reads_raw"] = row.reads_raw;
  out["reads_effective"] = row.reads_effective;
  out["kv_fraction"] = fraction(row.reads_effective, row.reads_raw);
  out["kv_bytes_mean"] = row.kv_bytes_mean;
  out["kv_read_bytes_mean"] = row.kv_read_bytes_mean;
  const auto maybe = [](const std::optional<double>& value) { return value ? Json(*value) : Json(); };
  out["correction_rate"] = maybe(row.correction_rate);
  out["miss_rate"] = maybe(row.miss_rate);
  out["prefix_hit_tokens"] = row.reused;
  out["live_hit_tokens"] = row.reused_live;
  out["tokens_computed"] = row.tokens_computed;
  out["samples"] = fmt::format("{:016x}", row.samples);
  out["inputs"] = fmt::format("{:016x}", row.inputs);
  out["backend"] = row.backend;
  out["model"] = row.model;
  out["asked"] = row.asked;
  out["correct_by_question"] = a.marks;
  const bool simulated = !row.simulated_load.empty();
  out["simulated_tokens_per_s"] = simulated ? Json(row.simulated_tokens_per_s) : Json();
  out["simulated_load"] = simulated ? Json(row.simulated_load) : Json();
  return out;
}

std::string csv_value(const Json& value) {
  if (value.is_null()) return "";
  return value.is_string() ? csv_cell(value.get<std::string>()) : value.dump();
}

std::string csv(const std::vector<QualityRow>& rows, const std::map<std::string, double>& full) {
  std::string out;
  for (const QualityRow& row : rows) {
    std::vector<std::string> names, values;
    const Json fields = record(row, full);
    for (const auto& [name, value] : fields.items()) {
      names.push_back(name);
      values.push_back(csv_value(value));
    }
    if (out.empty()) out = fmt::format("{}\n", fmt::join(names, ","));
    out += fmt::format("{}\n", fmt::join(values, ","));
  }
  return out;
}

// Names the cells that correct so many choices that their answers say nothing about speculation.
std::string mostly_corrected(const std::vector<QualityRow>& rows) {
  constexpr double kMost = 0.6;
  std::string out;
  for (const QualityRow& row : rows) {
    if (row.correction_rate.value_or(0) > kMost)
      out += fmt::format("  {}, budget {}, {}: {:.1f} % corrected\n", row.policy, row.budget, row.task,
                         100 * *row.correction_rate);
  }
  return out.empty() ? out
                     : "\nmore than 60 % of choices corrected, so hardly anything is speculated:\n" + out;
}

std::string table(const std::vector<QualityRow>& rows) {
  std::vector<std::string> tasks;
  std::vector<std::pair<std::string, uint32_t>> sets;
  std::map<std::string, const QualityRow*> at;
  const auto key = [](const std::string& policy, uint32_t budget, const std::string& task) {
    return fmt::format("{}\n{}\n{}", policy, budget, task);
  };
  for (const QualityRow& row : rows) {
    if (std::find(tasks.begin(), tasks.end(), row.task) == tasks.end()) tasks.push_back(row.task);
    const std::pair<std::string, uint32_t> set{row.policy, row.budget};
    if (std::find(sets.begin(), sets.end(), set) == sets.end()) sets.push_back(set);
    at[key(row.policy, row.budget, row.task)] = &row;
  }
  std::string out;
  const auto add = std::back_inserter(out);
  fmt::format_to(add, "  {:<18} {:>6} {:>8} {:>8}", "policy set", "budget", "retained", "KV read");
  for (const std::string& task : tasks) fmt::format_to(add, " {:>20}", task);
  out += '\n';
  for (const auto& [policy, budget] : sets) {
    uint64_t raw = 0, left = 0;
    double held = 0, read = 0;
    std::string cells;
    for (const std::string& task : tasks) {
      const auto found = at.find(key(policy, budget, task));
      const QualityRow* const row = found == at.end() ? nullptr : found->second;
      if (row == nullptr || !row->refused.empty()) {
        cells += fmt::format(" {:>20}", row == nullptr ? "-" : "refused");
        continue;
      }
      raw += row->reads_raw, left += row->reads_effective;
      held += row->kv_bytes_mean, read += row->kv_read_bytes_mean;
      const Interval range = wilson(row->answers.right, row->answers.questions);
      cells += fmt::format(" {:>20}", fmt::format("{:.1f} [{:.1f} {:.1f}]",
                                                  100 * fraction(row->answers.right, row->answers.questions),
                                                  100 * range.low, 100 * range.high));
    }
    // Retrieval reads a part of what is retained.
    const double retained = 100 * fraction(left, raw);
    fmt::format_to(add, "  {:<18} {:>6} {:>6.1f} % {:>6.1f} %{}\n", policy,
                   budget == 0 ? "-" : fmt::format("{}", budget), retained,
                   held > 0 ? retained * read / held : 0, cells);
  }
  std::string refusals;
  for (const QualityRow& row : rows) {
    if (!row.refused.empty() && refusals.find(row.policy + ":") == std::string::npos)
      refusals += fmt::format("  {}: {}\n", row.policy, row.refused);
  }
  out += mostly_corrected(rows);
  return refusals.empty() ? out : out + "\nrefused:\n" + refusals;
}

}  // namespace

std::string row_json(const QualityRow& row) { return record(row, {}).dump(1) + "\n"; }

namespace {

std::optional<QualityRow> row_of(const Json& in) {
  if (!in.is_object()) return std::nullopt;
  QualityRow row;
  const auto number = [&](const char* name) { return in.contains(name) && in[name].is_number(); };
  const auto words = [&](const char* name) { return in.contains(name) && in[name].is_string(); };
  for (const char* name :
       {"budget", "questions", "answered", "right", "right_permuted", "answer_tokens", "token_loss",
        "prompt_tokens_mean", "reads_raw", "reads_effective", "kv_bytes_mean", "kv_read_bytes_mean",
        "prefix_hit_tokens", "live_hit_tokens", "tokens_computed"}) {
    if (!number(name)) return std::nullopt;
  }
  for (const char* name : {"policy", "task", "refused", "samples", "inputs", "backend", "model", "asked"}) {
    if (!words(name)) return std::nullopt;
  }
  const auto hex = [&](const char* name) {
    return std::strtoull(in[name].get<std::string>().c_str(), nullptr, 16);
  };
  row.policy = in["policy"], row.task = in["task"], row.refused = in["refused"];
  row.backend = in["backend"], row.model = in["model"], row.asked = in["asked"];
  row.budget = in["budget"].get<uint32_t>();
  row.answers = {in["questions"].get<uint64_t>(),     in["answered"].get<uint64_t>(),
                 in["right"].get<uint64_t>(),         in["right_permuted"].get<uint64_t>(),
                 in["answer_tokens"].get<uint64_t>(), in["token_loss"].get<double>()};
  if (words("correct_by_question")) row.answers.marks = in["correct_by_question"];
  row.prompt_mean = in["prompt_tokens_mean"].get<double>();
  row.reads_raw = in["reads_raw"].get<uint64_t>(),
  row.reads_effective = in["reads_effective"].get<uint64_t>();
  row.kv_bytes_mean = in["kv_bytes_mean"].get<double>();
  row.kv_read_bytes_mean = in["kv_read_bytes_mean"].get<double>();
  if (number("correction_rate")) row.correction_rate = in["correction_rate"].get<double>();
  if (number("miss_rate")) row.miss_rate = in["miss_rate"].get<double>();
  row.reused = in["prefix_hit_tokens"].get<uint64_t>(),
  row.reused_live = in["live_hit_tokens"].get<uint64_t>();
  row.tokens_computed = in["tokens_computed"].get<uint64_t>();
  row.samples = hex("samples"), row.inputs = hex("inputs");
  if (number("simulated_tokens_per_s") && words("simulated_load")) {
    row.simulated_tokens_per_s = in["simulated_tokens_per_s"].get<double>();
    row.simulated_load = in["simulated_load"];
  }
  return row;
}

}  // namespace

std::optional<QualityRow> row_from_json(const std::string& text) {
  const auto shallow = [](int depth, Json::parse_event_t, Json&) { return depth <= 2; };
  return row_of(Json::parse(text, shallow, false));
}

std::optional<QualityRow> row_from_csv(const std::map<std::string, std::string>& line) {
  const Json names = record({}, {});
  Json in;
  for (const auto& [name, of_kind] : names.items()) {
    const auto found = line.find(name);
    if (found == line.end() || (found->second.empty() && !of_kind.is_string())) continue;
    const Json number = of_kind.is_string() || name == "simulated_load"
                            ? Json(found->second)
                            : Json::parse(found->second, nullptr, false);
    if (number.is_discarded() || number.is_structured()) return std::nullopt;
    in[name] = number;
  }
  return row_of(in);
}

std::string quality_text(const std::vector<QualityRow>& rows, OutputFormat format) {
  const std::map<std::string, double> full = full_losses(rows);
  if (format == OutputFormat::kTable) return table(rows);
  if (format == OutputFormat::kCsv) return csv(rows, full);
  std::string out;
  for (const QualityRow& row : rows) {
    if (format == OutputFormat::kJsonl) {
      out += record(row, full).dump() + "\n";
    } else {
      out += fmt::format("{}{}", out.empty() ? "[" : ",\n ", record(row, full).dump());
    }
  }
  if (format == OutputFormat::kJsonl) return out;
  return out.empty() ? "[]\n" : out + "]\n";
}

}  // namespace kvtwin
