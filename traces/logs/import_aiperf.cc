// aiperf: the artifacts of `aiperf profile`, also of AgentX (--scenario inferencex-agentx-mvp). PATH is
// profile_export.jsonl, inputs.json, or their folder. One record per request:
//   metadata  request_start_ns, request_end_ns (Unix), x_correlation_id (a session), root_correlation_id (the
//             session with its sub-agents), conversation_id, turn_index, was_cancelled
//   metrics   input_sequence_length, output_sequence_length, time_to_first_token: {value, unit}
//   error     null, or why the request failed
// inputs.json next to it has the text of each request: data[].session_id and data[].payloads[], which
// conversation_id and turn_index name. Alone it has no times and no output lengths.
//
// Sources: AIPerf's tutorial "Working with Profile Export Files"; src/aiperf/common/models/record_models.py
// (MetricRecordMetadata) and dataset_models.py (InputsFile).

#include <fmt/format.h>

#include <filesystem>
#include <map>

#include "traces/format/source_files.h"
#include "traces/importers/import_logs.h"
#include "traces/logs/log_json.h"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kRecords = "profile_export.jsonl";
constexpr const char* kInputs = "inputs.json";

// The texts of each conversation's turns.
using Payloads = std::map<std::string, std::vector<std::vector<LoggedText>>>;

std::optional<double> metric(const json& record, const char* name) {
  const json* const found = nested(&record, {"metrics", name});
  const std::optional<double> value = number_of(any_of(found, {"value"}));
  if (!value) return std::nullopt;
  const std::string unit = text_of(any_of(found, {"unit"}));
  return unit == "ms" ? *value * 1e6 : unit == "sec" || unit == "s" ? *value * 1e9 : *value;
}

std::optional<uint64_t> count_metric(const json& record, const char* name) {
  const std::optional<double> value = metric(record, name);
  return value && *value >= 0 && *value < 1e12 ? std::optional<uint64_t>(static_cast<uint64_t>(*value))
                                               : std::nullopt;
}

Result<void> each_payload(const std::string& path,
                          const std::function<void(const std::string& session, const json& payload)>& take) {
  return for_each_object(path, {}, [&](const json& object, const std::string& where) -> Result<void> {
    const json* const data = any_of(&object, {"data"});
    if (data == nullptr || !data->is_array())
      return make_error(where, "has no list \"data\"", "inputs.json as AIPerf writes it");
    for (const json& session : *data) {
      const json* const payloads = any_of(&session, {"payloads"});
      if (payloads == nullptr || !payloads->is_array()) continue;
      for (const json& payload : *payloads) take(text_of(any_of(&session, {"session_id"})), payload);
    }
    return {};
  });
}

Result<Payloads> read_payloads(const std::string& path) {
  Payloads out;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return out;
  const auto good = each_payload(path, [&](const std::string& session, const json& payload) {
    out[session].push_back(prompt_of_body(&payload));
  });
  if (!good) return tl::unexpected<Error>(good.error());
  return out;
}

Result<void> add_record(const json& record, const std::string& where, const Payloads& payloads,
                        RequestLog* log) {
  const json* const metadata = any_of(&record, {"metadata"});
  if (any_of(metadata, {"request_start_ns"}) == nullptr)
    return make_error(where, "has no metadata.request_start_ns",
                      "profile_export.jsonl: aiperf profile writes it with --export-level records, the "
                      "default (profile_export_aiperf.json has aggregates alone)");
  LoggedRequest request;
  request.where = where;
  request.session = text_of(any_of(metadata, {"root_correlation_id", "x_correlation_id"}));
  request.start_ns = unix_ns(any_of(metadata, {"request_start_ns"}));
  request.end_ns = unix_ns(any_of(metadata, {"request_end_ns"}));
  request.prompt_tokens = count_metric(record, "input_sequence_length");
  request.output_tokens = count_metric(record, "output_sequence_length");
  if (const std::optional<double> ttft = metric(record, "time_to_first_token"); ttft && request.start_ns)
    request.first_token_ns = *request.start_ns + static_cast<int64_t>(*ttft);
  const json* const cancelled = any_of(metadata, {"was_cancelled"});
  request.failed = any_of(&record, {"error"}) != nullptr ||
                   (cancelled != nullptr && cancelled->is_boolean() && cancelled->get<bool>());
  const auto turns = payloads.find(text_of(any_of(metadata, {"conversation_id"})));
  const uint64_t turn = count_of(any_of(metadata, {"turn_index"})).value_or(0);
  if (turns != payloads.end() && turn < turns->second.size()) request.prompt = turns->second[turn];
  log->requests.push_back(std::move(request));
  return {};
}

// Payloads without a run: the output is as long as the request allows.
Result<void> add_inputs(const std::string& path, RequestLog* log) {
  uint64_t index = 0;
  return each_payload(path, [&](const std::string& session, const json& payload) {
    LoggedRequest request;
    request.where = fmt::format("{}: payload {}", path, index++);
    request.session = session;
    request.model = text_of(any_of(&payload, {"model"}));
    request.prompt = prompt_of_body(&payload);
    request.output_tokens =
        count_of(any_of(&payload, {"max_completion_tokens", "max_tokens", "max_output_tokens"}));
    log->requests.push_back(std::move(request));
  });
}

}  // namespace

Result<void> import_aiperf(const std::string& path, const ImportOptions& options, TraceSink* sink) {
  RequestLog log;
  log.format = "aiperf";
  log.url = "https://github.com/ai-dynamo/aiperf";
  log.session_field = "metadata.x_correlation_id";
  log.tokens_hint =
      "AIPerf's records have lengths unless the request failed; in inputs.json, --osl sets them";
  log.time_resolution_ns = 1;
  std::error_code ignored;
  const bool folder = fs::is_directory(path, ignored);
  const std::string records = folder ? (fs::path(path) / kRecords).string() : path;
  const fs::path name = fs::path(records).filename();
  if (name.string().starts_with(kInputs)) {
    log.session_field = "data[].session_id";
    if (auto good = add_inputs(records, &log); !good) return good;
  } else {
    const Result<Payloads> payloads = read_payloads((fs::path(records).parent_path() / kInputs).string());
    if (!payloads) return tl::unexpected<Error>(payloads.error());
    const auto take = [&](const json& record, const std::string& where) {
      return add_record(record, where, *payloads, &log);
    };
    if (auto good = for_each_object(records, {}, take); !good) return good;
  }
  return write_request_log(std::move(log), path, options, sink);
}

}  // namespace kvtwin
