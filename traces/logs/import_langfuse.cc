// langfuse: observations of type GENERATION: rows of a table export (JSON or JSONL), observations_v2/ or
// observations/ of the blob storage export, pages of the observations API ({data, meta}), or a downloaded
// trace ({..., observations}). Names are in camelCase (API) or snake_case (blob storage):
//   startTime, endTime, completionStartTime   ISO text, UTC
//   usageDetails {input, output, ...}         or usage {input, output, promptTokens, completionTokens}
//   sessionId, traceId                        a session
//   input, output, model                      text: messages, or {messages}
//
// Sources: langfuse.com/docs/api-and-data-platform/features/blob-storage-export-fields;
// langfuse.com/faq/all/export-single-trace-or-session; the API's Observation and ObservationV2.

#include <fmt/format.h>

#include "traces/importers/import_logs.h"
#include "traces/logs/log_json.h"

namespace kvtwin {
namespace {

using nlohmann::json;

// A value that the export may have written as text.
json unpacked(const json* value) {
  if (value == nullptr) return nullptr;
  if (!value->is_string()) return *value;
  const std::string& text = value->get_ref<const std::string&>();
  if (!text.starts_with('{') && !text.starts_with('[')) return *value;
  const Result<CompactJson> parsed = parse_compact_json(text, {});
  return parsed ? parsed->tree : *value;
}

std::optional<uint64_t> sum_of_kinds(const json& usage, const char* kind) {
  // {input, input_cached_tokens, output, output_reasoning_tokens, total}: kinds are disjoint.
  std::optional<uint64_t> sum;
  if (!usage.is_object()) return sum;
  for (const auto& [name, value] : usage.items()) {
    const std::optional<uint64_t> count = name.starts_with(kind) ? count_of(&value) : std::nullopt;
    if (count) sum = sum.value_or(0) + *count;
  }
  return sum;
}

void add(const json& row, const json* trace, const std::string& where, RequestLog* log) {
  const std::string type = text_of(any_of(&row, {"type"}));
  if (type != "GENERATION" && type != "generation") return;
  LoggedRequest request;
  request.where = where;
  request.session = text_of(any_of(&row, {"sessionId", "session_id"}));
  if (request.session.empty()) request.session = text_of(any_of(trace, {"sessionId", "session_id"}));
  if (request.session.empty()) request.session = text_of(any_of(&row, {"traceId", "trace_id"}));
  if (request.session.empty()) request.session = text_of(any_of(trace, {"id"}));
  request.model = text_of(
      any_of(&row, {"model", "providedModelName", "provided_model_name", "modelId", "internalModel"}));
  request.start_ns = unix_ns_or(any_of(&row, {"startTime", "start_time"}), &request.unread_time);
  request.end_ns = unix_ns(any_of(&row, {"endTime", "end_time"}));
  request.first_token_ns = unix_ns(any_of(&row, {"completionStartTime", "completion_start_time"}));
  const json details = unpacked(any_of(&row, {"usageDetails", "usage_details"}));
  const json usage = unpacked(any_of(&row, {"usage"}));
  request.prompt_tokens = sum_of_kinds(details, "input");
  request.output_tokens = sum_of_kinds(details, "output");
  if (!request.prompt_tokens)
    request.prompt_tokens = count_of(any_of(&usage, {"input", "promptTokens", "prompt_tokens"}));
  if (!request.output_tokens)
    request.output_tokens = count_of(any_of(&usage, {"output", "completionTokens", "completion_tokens"}));
  request.cached_tokens =
      count_of(any_of(&details, {"input_cached_tokens", "cache_read_input_tokens", "input_cache_read"}));
  const json input = unpacked(any_of(&row, {"input"}));
  const json output = unpacked(any_of(&row, {"output"}));
  request.prompt = input.is_null() ? std::vector<LoggedText>{} : texts_of(&input);
  if (!output.is_null()) request.output = answer_of(&output);
  request.failed = text_of(any_of(&row, {"level"})) == "ERROR";
  log->requests.push_back(std::move(request));
}

}  // namespace

Result<void> import_langfuse(const std::string& path, const ImportOptions& options, TraceSink* sink) {
  RequestLog log;
  log.format = "langfuse";
  log.url = "https://langfuse.com";
  log.session_field = "sessionId or traceId";
  log.tokens_hint = "generations with usageDetails (export the usage fields too: fields=core,basic,io,usage)";
  const auto take = [&](const json& row, const std::string& where) -> Result<void> {
    for (const char* const name : {"observations", "data"}) {
      const json* const list = any_of(&row, {name});
      if (list == nullptr || !list->is_array()) continue;
      for (const json& one : *list) add(one, &row, where, &log);
      return {};
    }
    add(row, nullptr, where, &log);
    return {};
  };
  if (auto good = for_each_object(path, {}, take); !good) return good;
  if (log.requests.empty())
    return make_error(path, "holds no observation of type GENERATION",
                      "observations of Langfuse, as JSON or JSONL");
  return write_request_log(std::move(log), path, options, sink);
}

}  // namespace kvtwin
