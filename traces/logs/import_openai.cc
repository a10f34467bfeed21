// openai: a plain log of requests to an OpenAI-compatible API, one JSON object a line (or a list). No tool
// owns this format, so the fields are looked for under the names that loggers use:
//   request, body   the request's body; or the line itself is it (model, messages, prompt, input, tools)
//   response        the response's body; or its fields in the line (usage, choices, output)
//   usage           prompt_tokens, completion_tokens (Responses API: input_tokens, output_tokens),
//                   prompt_tokens_details.cached_tokens
//   start           start_time, timestamp, time, ts, created_at, request_time; else the response's created
//   end             end_time, finished_at; or latency_ms, duration_ms; or latency, duration, response_time
//   (s) first token     first_token_time; or ttft_ms; or ttft, time_to_first_token (s) session session_id,
//   conversation_id, thread_id, trace_id, in the line or in `metadata` failed          error, or a status of
//   400 and more
// Lines of the Batch API ({custom_id, response: {status_code, body}}) are read too.
//
// Sources: platform.openai.com/docs/api-reference (chat, completions, responses, batch): bodies and usage.

#include <fmt/format.h>

#include "traces/importers/import_logs.h"
#include "traces/logs/log_json.h"

namespace kvtwin {
namespace {

using nlohmann::json;

// A field that holds JSON, or JSON as text.
json logged_body(const json* value) {
  if (value == nullptr) return nullptr;
  if (value->is_string()) {
    const Result<CompactJson> parsed = parse_compact_json(value->get_ref<const std::string&>(), {});
    return parsed ? parsed->tree : json(nullptr);
  }
  const json* const inner = any_of(value, {"body"});
  return inner != nullptr && inner->is_object() ? *inner : *value;
}

std::optional<int64_t> time_after(const json& row, std::optional<int64_t> start,
                                  std::initializer_list<const char*> at,
                                  std::initializer_list<const char*> ms,
                                  std::initializer_list<const char*> s) {
  if (const json* const value = any_of(&row, at)) return unix_ns(value);
  if (!start) return std::nullopt;
  if (const std::optional<double> value = number_of(any_of(&row, ms)))
    return *start + static_cast<int64_t>(*value * 1e6);
  if (const std::optional<int64_t> value = seconds_ns(any_of(&row, s))) return *start + *value;
  return std::nullopt;
}

std::string session_of(const json& row, const json& body) {
  for (const json* const object : {&row, any_of(&row, {"metadata"}), any_of(&body, {"metadata"}), &body}) {
    const std::string found = text_of(any_of(
        object, {"session_id", "conversation_id", "thread_id", "sessionId", "conversationId", "trace_id"}));
    if (!found.empty()) return found;
  }
  return {};
}

void add_openai_row(const json& row, const std::string& where, RequestLog* log) {
  const json* const asked = any_of(&row, {"request", "request_body", "body"});
  const json body = asked != nullptr ? logged_body(asked) : row;
  const json* const answered = any_of(&row, {"response", "response_body"});
  const json response = answered != nullptr ? logged_body(answered) : row;
  LoggedRequest request;
  request.where = where;
  request.session = session_of(row, body);
  request.model = text_of(any_of(&body, {"model"}));
  request.start_ns = unix_ns_or(any_of(&row, {"start_time", "startTime", "timestamp", "time", "ts",
                                              "created_at", "request_time", "@timestamp"}),
                                &request.unread_time);
  if (!request.start_ns) request.start_ns = unix_ns(any_of(&response, {"created", "created_at"}));
  request.end_ns = time_after(row, request.start_ns, {"end_time", "endTime", "finished_at"},
                              {"latency_ms", "duration_ms", "response_time_ms"},
                              {"latency", "duration", "response_time", "latency_s"});
  request.first_token_ns =
      time_after(row, request.start_ns, {"first_token_time"}, {"ttft_ms"}, {"ttft", "time_to_first_token"});
  const json* usage = any_of(&response, {"usage"});
  if (usage == nullptr) usage = any_of(&row, {"usage"});
  request.prompt_tokens = count_of(any_of(usage, {"prompt_tokens", "input_tokens"}));
  request.output_tokens = count_of(any_of(usage, {"completion_tokens", "output_tokens"}));
  for (const char* const details : {"prompt_tokens_details", "input_tokens_details"}) {
    if (!request.cached_tokens) request.cached_tokens = count_of(nested(usage, {details, "cached_tokens"}));
  }
  request.prompt = prompt_of_body(&body);
  if (answered != nullptr && response.is_null())
    request.output = answer_of(answered);  // text that is no JSON
  else if (answered != nullptr || any_of(&row, {"choices", "output"}) != nullptr)
    request.output = answer_of(&response);
  const json* status = any_of(&row, {"status_code", "status"});
  if (status == nullptr) status = any_of(answered, {"status_code"});
  request.failed = any_of(&row, {"error"}) != nullptr || any_of(&response, {"error"}) != nullptr ||
                   count_of(status).value_or(0) >= 400;
  log->requests.push_back(std::move(request));
}

}  // namespace

Result<void> import_openai(const std::string& path, const ImportOptions& options, TraceSink* sink) {
  RequestLog log;
  log.format = "openai";
  log.url = "https://platform.openai.com/docs/api-reference";
  log.session_field = "session_id, conversation_id, thread_id or trace_id";
  log.tokens_hint = "log the response's \"usage\" (streams: stream_options.include_usage=true), or its text";
  log.time_resolution_ns = 1e6;
  const auto take = [&](const json& row, const std::string& where) -> Result<void> {
    if (!row.is_object()) return make_error(where, "is no JSON object", "one request and response a line");
    add_openai_row(row, where, &log);
    return {};
  };
  if (auto good = for_each_object(path, {}, take); !good) return good;
  return write_request_log(std::move(log), path, options, sink);
}

}  // namespace kvtwin
