#include "scenarios/output/compare_runs.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "scenarios/output/metric_names.h"
#include "traces/proto/scenario.pb.h"

namespace kvtwin {
namespace {

namespace pb = google::protobuf;
using Json = nlohmann::ordered_json;

// The metrics of the table, in its order. An empty name starts a new group.
constexpr const char* kShown[] = {"ttft_mean_ms",
                                  "ttft_p50_ms",
                                  "ttft_p99_ms",
                                  "tpot_mean_ms",
                                  "tpot_p99_ms",
                                  "e2e_mean_ms",
                                  "e2e_p99_ms",
                                  "session_makespan_p50_ms",
                                  "",
                                  "requests_per_s",
                                  "output_tokens_per_s",
                                  "usd_per_million_output_tokens",
                                  "busy",
                                  "",
                                  "requests_finished",
                                  "requests_rejected",
                                  "preemptions",
                                  "prefix_reuse",
                                  "gpu_pages_held_fraction",
                                  "transfer_exposed_s"};
// Metrics that identify a run instead of measuring it.
constexpr std::string_view kNotCompared[] = {"schema", "seed"};

void flatten(const pb::Message& message, const std::string& prefix, std::map<std::string, std::string>* out) {
  std::vector<const pb::FieldDescriptor*> set;
  message.GetReflection()->ListFields(message, &set);
  for (const pb::FieldDescriptor* field : set) {
    const std::string path = prefix + field->name();
    if (field->cpp_type() == pb::FieldDescriptor::CPPTYPE_MESSAGE && !field->is_repeated()) {
      flatten(message.GetReflection()->GetMessage(message, field), path + ".", out);
      continue;
    }
    const int count = field->is_repeated() ? message.GetReflection()->FieldSize(message, field) : 1;
    std::string all;
    for (int i = 0; i < count; ++i) {
      std::string one;
      pb::TextFormat::PrintFieldValueToString(message, field, field->is_repeated() ? i : -1, &one);
      all += (i > 0 ? ", " : "") + one;
    }
    (*out)[path] = all;
  }
}

std::map<std::string, std::string> settings_of(const v1::RunResult& result) {
  v1::Scenario scenario;
  std::map<std::string, std::string> out;
  pb::TextFormat::Parser parser;
  parser.AllowUnknownField(true);
  parser.RecordErrorsTo(nullptr);
  if (!parser.ParseFromString(result.scenario_text(), &scenario)) return out;
  scenario.clear_name();
  scenario.clear_description();
  flatten(scenario, "", &out);
  return out;
}

std::map<std::string, double> metrics_of(const v1::RunResult& result) {
  std::map<std::string, double> out;
  const Json all = Json::parse(format_summary(result, OutputFormat::kJsonl, {}), nullptr, false);
  if (!all.is_object()) return out;
  const bool measured = result.backend() == "measured";
  for (const auto& [name, value] : all.items()) {
    // Figures that a real server's files lack are 0 in a result.
    if (value.is_number() && !(measured && value == 0)) out[name] = value.get<double>();
  }
  return out;
}

std::optional<RunsComparison::SameRequests> same_requests(const ComparedRun& first,
                                                          const ComparedRun& second) {
  std::map<std::string, const Request*> by_id;
  for (const Request& one : first.requests) by_id.emplace(one.id, &one);
  RunsComparison::SameRequests out;
  std::vector<double> percents;
  for (const Request& one : second.requests) {
    const auto found = by_id.find(one.id);
    if (one.id.empty() || found == by_id.end()) return std::nullopt;
    const Request& before = *found->second;
    if (before.input_tokens != one.input_tokens || before.output_tokens != one.output_tokens)
      return std::nullopt;
    const Begins begins = begins_of(before, one);
    const double was = before.last_token_s - begins.first_s, is = one.last_token_s - begins.second_s;
    if (was <= 0) continue;
    percents.push_back(100 * (is - was) / was);
    out.faster += percents.back() < -1;
    out.slower += percents.back() > 1;
  }
  if (percents.empty()) return std::nullopt;
  out.requests = percents.size();
  std::sort(percents.begin(), percents.end());
  out.median_percent = (percents[(percents.size() - 1) / 2] + percents[percents.size() / 2]) / 2;
  return out;
}

std::string difference_text(const RunsComparison::Metric& metric) {
  const std::optional<double> percent = metric.difference_percent();
  return percent ? fmt::format("{:+.2f} %", *percent) : "new";
}

std::string value_text(double value) {
  return std::abs(value) < 1e15 && value == std::floor(value) ? fmt::format("{:.0f}", value)
                                                              : fmt::format("{:.5g}", value);
}

// Of an absolute path only the last part: the folder differs between machines.
std::string setting_text(const std::string& value) {
  if (value.empty()) return "-";
  const size_t slash = value.rfind('/');
  return value.starts_with("\"/") && slash != std::string::npos ? "\"" + value.substr(slash + 1) : value;
}

std::string table_of(const RunsComparison& all) {
  size_t width = 16, field_width = 16;
  for (const std::string& name : {all.first, all.second}) width = std::max(width, name.size());
  for (const auto& one : all.settings) {
    field_width = std::max(field_width, one.field.size());
    width = std::max({width, setting_text(one.first).size(), setting_text(one.second).size()});
  }
  for (const char* shown : kShown) field_width = std::max(field_width, std::string_view(shown).size());
  std::string out;
  const auto line = [&](const std::string& a, const std::string& b, const std::string& c,
                        const std::string& d) {
    out += fmt::format("  {:<{}}  {:>{}}  {:>{}}", a, field_width, b, width, c, width);
    out += d.empty() ? "\n" : fmt::format("  {:>12}\n", d);
  };
  line("", all.first, all.second, "");
  if (all.measured) out += "  (settings of a real server's run are not known)\n";
  for (const auto& one : all.settings) line(one.field, setting_text(one.first), setting_text(one.second), "");
  if (!all.measured && all.settings.empty()) out += "  no setting differs\n";
  out += '\n';
  for (const char* shown : kShown) {
    if (*shown == 0) {
      if (!out.ends_with("\n\n")) out += '\n';
      continue;
    }
    for (const auto& one : all.metrics) {
      if (one.name == shown && (one.first != 0 || one.second != 0))
        line(one.name, value_text(one.first), value_text(one.second), difference_text(one));
    }
  }
  out += '\n';
  if (all.same)
    out += fmt::format(
        "of {} requests that both finished, {} are faster in {}, {} slower, by more than 1 %; median {:+.2f} "
        "% "
        "of latency\n",
        all.same->requests, all.same->faster, all.second, all.same->slower, all.same->median_percent);
  if (!all.measured) out += all.same_decisions ? "all decisions are the same\n" : "their decisions differ\n";
  return out;
}

Json json_of(const RunsComparison& all) {
  Json out;
  out["first"] = all.first;
  out["second"] = all.second;
  if (!all.measured) out["same_decisions"] = all.same_decisions;
  out["settings"] = Json::array();
  for (const auto& one : all.settings)
    out["settings"].push_back({{"field", one.field}, {"first", one.first}, {"second", one.second}});
  for (const auto& one : all.metrics) {
    Json row = {{"metric", one.name}, {"unit", one.unit}, {"first", one.first}, {"second", one.second}};
    const std::optional<double> percent = one.difference_percent();
    row["difference_percent"] = percent ? Json(*percent) : Json(nullptr);
    out["metrics"].push_back(std::move(row));
  }
  if (all.same)
    out["same_requests"] = {{"requests", all.same->requests},
                            {"faster", all.same->faster},
                            {"slower", all.same->slower},
                            {"median_percent", all.same->median_percent}};
  return out;
}

}  // namespace

std::optional<double> RunsComparison::Metric::difference_percent() const {
  if (first == second) return 0;
  if (first == 0) return std::nullopt;
  return 100 * (second - first) / std::abs(first);
}

RunsComparison compare_runs(const ComparedRun& first, const ComparedRun& second) {
  RunsComparison out;
  out.first = first.name;
  out.second = second.name;
  out.same_decisions = first.result.decisions() == second.result.decisions();
  const std::map<std::string, std::string> a = settings_of(first.result), b = settings_of(second.result);
  out.measured = a.empty() || b.empty();
  if (!out.measured) {
    std::set<std::string> fields;
    for (const auto* side : {&a, &b}) {
      for (const auto& [field, value] : *side) fields.insert(field);
    }
    const auto value = [](const std::map<std::string, std::string>& in, const std::string& field) {
      const auto found = in.find(field);
      return found == in.end() ? std::string() : found->second;
    };
    for (const std::string& field : fields) {
      if (value(a, field) != value(b, field))
        out.settings.push_back({field, value(a, field), value(b, field)});
    }
  }
  const std::map<std::string, double> x = metrics_of(first.result), y = metrics_of(second.result);
  for (const MetricName& metric : metric_names()) {
    const auto left = x.find(metric.name), right = y.find(metric.name);
    const bool named =
        std::find(std::begin(kNotCompared), std::end(kNotCompared), metric.name) != std::end(kNotCompared);
    if (left == x.end() || right == y.end() || named) continue;
    out.metrics.push_back({metric.name, metric.unit, left->second, right->second});
  }
  out.same = same_requests(first, second);
  return out;
}

std::string format_runs(const RunsComparison& comparison, OutputFormat format) {
  if (format == OutputFormat::kTable) return table_of(comparison);
  if (format == OutputFormat::kCsv) {
    std::string out = "metric,unit,first,second,difference_percent\n";
    for (const auto& one : comparison.metrics) {
      const std::optional<double> percent = one.difference_percent();
      out += fmt::format("{},{},{},{},{}\n", one.name, one.unit, one.first, one.second,
                         percent ? fmt::format("{:.4f}", *percent) : "");
    }
    return out;
  }
  return json_of(comparison)
             .dump(format == OutputFormat::kJson ? 2 : -1, ' ', false, Json::error_handler_t::replace) +
         "\n";
}

Result<std::vector<std::string>> broken_limits(const RunsComparison& comparison,
                                               const std::vector<std::string>& limits) {
  std::vector<std::string> broken;
  for (const std::string& limit : limits) {
    const Result<DifferenceLimit> parsed = parse_limit(limit);
    if (!parsed) return tl::unexpected<Error>(parsed.error());
    const std::string where = "--limit=" + limit, name = metric_name(parsed->metric);
    if (name.empty())
      return make_error(where, fmt::format("no metric \"{}\"", parsed->metric), metric_hint(parsed->metric));
    const auto found = std::find_if(comparison.metrics.begin(), comparison.metrics.end(),
                                    [&](const RunsComparison::Metric& one) { return one.name == name; });
    if (found == comparison.metrics.end())
      return make_error(where, fmt::format("{} is not in both runs", name), "a metric that both have");
    const std::optional<double> percent = found->difference_percent();
    if (percent && parsed->holds(*percent)) continue;
    broken.push_back(fmt::format("{}: {} in {}, {} in {}: {}, {}", name, value_text(found->first),
                                 comparison.first, value_text(found->second), comparison.second,
                                 difference_text(*found), parsed->text()));
  }
  return broken;
}

}  // namespace kvtwin
