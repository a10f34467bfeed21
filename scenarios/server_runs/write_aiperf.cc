#include "scenarios/server_runs/write_aiperf.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

namespace kvtwin {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kOriginNs = 1'577'836'800'000'000'000;  // 2020-01-01
constexpr int kPercentiles[] = {1, 5, 10, 25, 50, 75, 90, 95, 99};

std::vector<std::string> cells_of(std::string_view line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"') {
      if (quoted && i + 1 < line.size() && line[i + 1] == '"')
        cells.back() += line[++i];
      else
        quoted = !quoted;
    } else if (line[i] == ',' && !quoted) {
      cells.emplace_back();
    } else if (line[i] != '\r') {
      cells.back() += line[i];
    }
  }
  return cells;
}

struct Metric {
  const char* tag;
  const char* title;
  const char* unit;
};

constexpr Metric kMetrics[] = {
    {"time_to_first_token", "Time to First Token", "ms"},
    {"request_latency", "Request Latency", "ms"},
    {"inter_token_latency", "Inter Token Latency", "ms"},
    {"output_token_throughput_per_user", "Output Token Throughput Per User", "tokens/sec/user"},
    {"input_sequence_length", "Input Sequence Length", "tokens"},
    {"output_sequence_length", "Output Sequence Length", "tokens"},
};

struct ExportedRequest {
  std::string session;
  bool finished = false;
  int64_t ready_ns = 0, first_ns = 0, end_ns = 0;
  double prompt = 0, output = 0;
};

class Rows {
 public:
  Rows(std::string_view csv, std::string where) : csv_(csv), where_(std::move(where)) {}

  Result<std::vector<ExportedRequest>> read() {
    const std::vector<std::string> titles = cells_of(next());
    for (size_t i = 0; i < titles.size(); ++i) column_[titles[i]] = i;
    for (const char* const name :
         {"session", "end", "prompt_tokens", "output_tokens", "ready_ns", "first_token_ns", "finished_ns"}) {
      if (!column_.contains(name))
        return make_error(where_, fmt::format("has no column \"{}\"", name), "requests.csv of a run");
    }
    std::vector<ExportedRequest> out;
    while (!csv_.empty()) {
      const std::vector<std::string> cells = cells_of(next());
      if (cells.size() == 1 && cells[0].empty()) continue;
      if (cells.size() != titles.size())
        return make_error(fmt::format("{}:{}", where_, line_), fmt::format("has {} cells", cells.size()),
                          fmt::format("{}", titles.size()));
      const auto number = [&](const char* name) {
        int64_t value = 0;
        const std::string& text = cells[column_[name]];
        const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), value);
        ok_ = ok_ && bad == std::errc() && end == text.data() + text.size();
        return value;
      };
      ExportedRequest row;
      row.session = cells[column_["session"]];
      row.finished = cells[column_["end"]] == "finished";
      row.prompt = static_cast<double>(number("prompt_tokens"));
      row.ready_ns = number("ready_ns");
      if (row.finished) {
        row.output = static_cast<double>(number("output_tokens"));
        row.first_ns = number("first_token_ns");
        row.end_ns = number("finished_ns");
      }
      if (!ok_) return make_error(fmt::format("{}:{}", where_, line_), "has no number where one belongs");
      out.push_back(std::move(row));
    }
    return out;
  }

 private:
  std::string_view next() {
    const size_t end = std::min(csv_.find('\n'), csv_.size());
    const std::string_view line = csv_.substr(0, end);
    csv_.remove_prefix(std::min(end + 1, csv_.size()));
    ++line_;
    return line;
  }

  std::string_view csv_;
  const std::string where_;
  uint64_t line_ = 0;
  bool ok_ = true;
  std::map<std::string, size_t> column_;
};

std::optional<double> value_of(const ExportedRequest& row, std::string_view tag) {
  const double decode_ns = static_cast<double>(row.end_ns - row.first_ns);
  if (tag == "time_to_first_token") return static_cast<double>(row.first_ns - row.ready_ns) / 1e6;
  if (tag == "request_latency") return static_cast<double>(row.end_ns - row.ready_ns) / 1e6;
  if (tag == "input_sequence_length") return row.prompt;
  if (tag == "output_sequence_length") return row.output;
  if (row.output < 2 || decode_ns <= 0) return std::nullopt;
  const double gap_ns = decode_ns / (row.output - 1);
  return tag == "inter_token_latency" ? gap_ns / 1e6 : 1e9 / gap_ns;
}

double percentile(const std::vector<double>& sorted, int percent) {
  const double at = static_cast<double>(percent) / 100 * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - std::floor(at)) * (sorted[high] - sorted[low]);
}

ordered_json statistics(std::vector<double> values, const char* unit) {
  ordered_json out = {{"unit", unit}};
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const double mean = sum / static_cast<double>(values.size());
  for (const double value : values) squares += (value - mean) * (value - mean);
  out["avg"] = mean;
  for (const int percent : kPercentiles) out[fmt::format("p{}", percent)] = percentile(values, percent);
  out["min"] = values.front();
  out["max"] = values.back();
  out["std"] = values.size() < 2 ? 0.0 : std::sqrt(squares / static_cast<double>(values.size() - 1));
  out["count"] = values.size();
  out["sum"] = sum;
  return out;
}

std::string records(const std::vector<ExportedRequest>& rows) {
  std::string out;
  std::map<std::string, std::pair<uint64_t, uint64_t>> sessions;  // number, and turns so far
  for (size_t i = 0; i < rows.size(); ++i) {
    const ExportedRequest& row = rows[i];
    auto& [number, turn] = sessions.emplace(row.session, std::pair(sessions.size(), 0)).first->second;
    ordered_json record;
    ordered_json& metadata = record["metadata"];
    metadata["session_num"] = number;
    metadata["x_request_id"] = fmt::format("{}", i);
    metadata["x_correlation_id"] = row.session;
    metadata["conversation_id"] = row.session;
    metadata["turn_index"] = turn++;
    metadata["request_start_ns"] = kOriginNs + row.ready_ns;
    metadata["request_ack_ns"] = nullptr;
    metadata["request_end_ns"] = kOriginNs + (row.finished ? row.end_ns : row.ready_ns);
    metadata["worker_id"] = metadata["record_processor_id"] = "kvtwin";
    metadata["benchmark_phase"] = "profiling";
    metadata["was_cancelled"] = !row.finished;
    metadata["cancellation_time_ns"] = nullptr;
    record["metrics"] = ordered_json::object();
    for (const Metric& metric : kMetrics) {
      const std::optional<double> value = row.finished ? value_of(row, metric.tag) : std::nullopt;
      if (value) record["metrics"][metric.tag] = {{"value", *value}, {"unit", metric.unit}};
    }
    record["error"] = nullptr;
    if (!row.finished)
      record["error"] = {{"code", 499}, {"type", "RequestCancellationError"}, {"message", "not finished"}};
    out += record.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  }
  return out;
}

}  // namespace

Result<std::vector<RunFile>> aiperf_files(std::string_view csv, const std::string& model,
                                          const std::string& where) {
  const Result<std::vector<ExportedRequest>> rows = Rows(csv, where).read();
  if (!rows) return tl::unexpected<Error>(rows.error());
  ordered_json all = ordered_json::object();
  std::string table = "Metric,avg,min,max,p1,p5,p10,p25,p50,p75,p90,p95,p99,std\n";
  int64_t first = INT64_MAX, last = 0;
  double finished = 0, prompt = 0, output = 0;
  for (const ExportedRequest& row : *rows) {
    if (!row.finished) continue;
    first = std::min(first, row.ready_ns), last = std::max(last, row.end_ns);
    ++finished, prompt += row.prompt, output += row.output;
  }
  if (finished == 0) return make_error(where, "has no finished request", "a run that finished some");
  for (const Metric& metric : kMetrics) {
    std::vector<double> values;
    for (const ExportedRequest& row : *rows) {
      const std::optional<double> value = row.finished ? value_of(row, metric.tag) : std::nullopt;
      if (value) values.push_back(*value);
    }
    if (values.empty()) continue;
    const ordered_json one = statistics(std::move(values), metric.unit);
    table += fmt::format("{} ({})", metric.title, metric.unit);
    for (const char* const name :
         {"avg", "min", "max", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "std"})
      table += fmt::format(",{:.2f}", one[name].get<double>());
    table += '\n';
    all[metric.tag] = one;
  }
  const double seconds = std::max(1e-9, static_cast<double>(last - first) / 1e9);
  table += "\nMetric,Value\n";
  const auto single = [&](const char* tag, const char* title, const char* unit, double value) {
    all[tag] = {{"unit", unit}, {"avg", value}};
    table += fmt::format("{} ({}),{:.2f}\n", title, unit, value);
  };
  single("request_throughput", "Request Throughput", "requests/sec", finished / seconds);
  single("output_token_throughput", "Output Token Throughput", "tokens/sec", output / seconds);
  single("request_count", "Request Count", "requests", finished);
  single("benchmark_duration", "Benchmark Duration", "sec", seconds);
  single("total_isl", "Total Input Sequence Length", "tokens", prompt);
  single("total_osl", "Total Output Sequence Length", "tokens", output);
  all["input_config"] = {
      {"endpoint", {{"model_names", {model}}, {"type", "completions"}, {"streaming", true}}}};
  all["was_cancelled"] = false;
  return std::vector<RunFile>{
      {"profile_export.jsonl", records(*rows)},
      {"profile_export_aiperf.json", all.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n"},
      {"profile_export_aiperf.csv", table}};
}

}  // namespace kvtwin
