// AIPerf's profile_export.jsonl: one record per request.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "scenarios/server_runs/measured.h"

namespace kvtwin {
namespace {

using ForeignJson = nlohmann::json;  // written by other tools

// A metric in seconds or tokens; NaN if the record has none.
double value_of(const ForeignJson& metrics, const char* name) {
  if (!metrics.is_object() || !metrics.contains(name) || !metrics[name].contains("value")) return NAN;
  const double value = metrics[name]["value"].get<double>();
  const std::string unit = metrics[name].value("unit", "");
  if (unit == "ms") return value / 1e3;
  if (unit == "us") return value / 1e6;
  return unit == "ns" ? value / 1e9 : value;
}

struct Record {
  MeasuredRequest request;
  int64_t start_ns = 0, end_ns = 0;
};

Record record_of(const ForeignJson& json) {
  Record out;
  const ForeignJson& metadata = json.at("metadata");
  const ForeignJson metrics = json.value("metrics", ForeignJson::object());
  out.start_ns = metadata.at("request_start_ns").get<int64_t>();
  out.end_ns = metadata.at("request_end_ns").get<int64_t>();
  if (const auto at = metadata.find("x_correlation_id"); at != metadata.end() && at->is_string())
    out.request.session = at->get<std::string>();
  const double ttft = value_of(metrics, "time_to_first_token");
  const double input = value_of(metrics, "input_sequence_length");
  const double output = value_of(metrics, "output_sequence_length");
  const bool failed = json.contains("error") && !json["error"].is_null();
  out.request.finished = !failed && std::isfinite(ttft) && std::isfinite(input) && output >= 1;
  out.request.prompt = std::isfinite(input) ? static_cast<uint64_t>(input) : 0;
  out.request.output = std::isfinite(output) ? static_cast<uint64_t>(output) : 0;
  out.request.first_s = std::isfinite(ttft) ? ttft : 0;  // from the start
  return out;
}

}  // namespace

Result<MeasuredRun> read_aiperf(std::string_view text, const std::string& where) {
  MeasuredRun run;
  run.name = "aiperf";
  std::vector<Record> records;
  for (uint64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      records.push_back(record_of(ForeignJson::parse(line)));
    } catch (const ForeignJson::exception& error) {
      return make_error(fmt::format("{}:{}", where, number), fmt::format("is not a record: {}", error.what()),
                        "profile_export.jsonl, as AIPerf writes it");
    }
  }
  int64_t first = INT64_MAX;
  for (const Record& one : records) first = std::min(first, one.start_ns);
  for (Record& one : records) {
    one.request.begin_s = static_cast<double>(one.start_ns - first) / 1e9;
    one.request.end_s = static_cast<double>(one.end_ns - first) / 1e9;
    one.request.first_s = std::min(one.request.begin_s + one.request.first_s, one.request.end_s);
    run.requests.push_back(one.request);
  }
  if (run.requests.empty()) return make_error(where, "holds no request");
  if (const Result<void> good = check_requests(run, where); !good) return tl::unexpected<Error>(good.error());
  return run;
}

}  // namespace kvtwin
