// otel: OpenTelemetry spans with GenAI attributes. OTLP JSON (one object, or one a line as the collector's
// file exporter writes): resourceSpans[].scopeSpans[].spans[] with traceId, startTimeUnixNano,
// endTimeUnixNano, status.code and attributes[] {key, value: {stringValue, intValue, doubleValue}}. Also the
// flat form of inference-perf: spans[] with trace_id, start_time, end_time and attributes {key: value}.
// A span counts if it is a model call:
//   gen_ai.operation.name   chat, text_completion or generate_content; or absent, with token usage
//   gen_ai.usage.*          input_tokens, output_tokens (older, and vLLM's: prompt_tokens,
//   completion_tokens);
//                           cache_read.input_tokens
//   session                 gen_ai.conversation.id, else session.id, else the trace id
//   first token             gen_ai.latency.time_to_first_token (vLLM, SGLang; s), or
//                           gen_ai.response.time_to_first_chunk (s)
//   text                    gen_ai.system_instructions, gen_ai.input.messages, gen_ai.output.messages
// vLLM's spans (`--otlp-traces-endpoint`) have no text and one trace per request unless the client sent one.
//
// Sources: opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans; opentelemetry-proto's JSON mapping;
// vllm/tracing.py (SpanAttributes); inference-perf examples/otel/test_traces.

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "traces/importers/import_logs.h"
#include "traces/logs/log_json.h"

namespace kvtwin {
namespace {

using nlohmann::json;

constexpr uint64_t kStatusError = 2;  // opentelemetry.proto.trace.v1.Status

// The value of an OTLP AnyValue; others stay as they are.
json plain(const json& value) {
  if (!value.is_object()) return value;
  for (const char* const name : {"stringValue", "intValue", "doubleValue", "boolValue"}) {
    if (const json* const inner = any_of(&value, {name})) return *inner;
  }
  if (const json* const list = nested(&value, {"arrayValue", "values"});
      list != nullptr && list->is_array()) {
    json out = json::array();
    for (const json& one : *list) out.push_back(plain(one));
    return out;
  }
  return value;
}

json attributes_of(const json& span) {
  const json* const list = any_of(&span, {"attributes"});
  if (list == nullptr) return json::object();
  if (list->is_object()) return *list;
  json out = json::object();
  if (!list->is_array()) return out;
  for (const json& entry : *list) {
    const json* const value = any_of(&entry, {"value"});
    if (value != nullptr) out[text_of(any_of(&entry, {"key"}))] = plain(*value);
  }
  return out;
}

class OtelReader {
 public:
  explicit OtelReader(RequestLog* log) : log_(*log) {}

  uint64_t spans = 0;

  void add_object(const json& object, const std::string& where) {
    if (object.is_array()) {
      for (const json& one : object) add_object(one, where);
      return;
    }
    each(object, {"resourceSpans", "resource_spans"}, [&](const json& resource) {
      each(resource, {"scopeSpans", "scope_spans", "instrumentationLibrarySpans"}, [&](const json& scope) {
        each(scope, {"spans"}, [&](const json& span) { add_span(span, where); });
      });
    });
    each(object, {"spans"}, [&](const json& span) { add_span(span, where); });
    if (any_of(&object, {"span_id", "spanId"}) != nullptr) add_span(object, where);
  }

 private:
  template <typename Take>
  void each(const json& object, std::initializer_list<const char*> names, const Take& take) {
    const json* const list = any_of(&object, names);
    if (list == nullptr || !list->is_array()) return;
    for (const json& one : *list) take(one);
  }

  void add_span(const json& span, const std::string& where) {
    ++spans;
    const json values = attributes_of(span);
    const std::string operation = text_of(any_of(&values, {"gen_ai.operation.name"}));
    const json* const input = any_of(&values, {"gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"});
    const json* const messages = any_of(&values, {"gen_ai.input.messages"});
    const bool call = operation == "chat" || operation == "text_completion" ||
                      operation == "generate_content" || (operation.empty() && input != nullptr);
    if (!call) return;
    LoggedRequest request;
    request.where = fmt::format("{}: span {}", where, text_of(any_of(&span, {"spanId", "span_id"})));
    request.start_ns = unix_ns_or(any_of(&span, {"startTimeUnixNano", "start_time"}), &request.unread_time);
    request.end_ns = unix_ns(any_of(&span, {"endTimeUnixNano", "end_time"}));
    request.session = text_of(any_of(&values, {"gen_ai.conversation.id", "session.id"}));
    if (request.session.empty()) request.session = text_of(any_of(&span, {"traceId", "trace_id"}));
    request.model = text_of(any_of(&values, {"gen_ai.request.model", "gen_ai.response.model"}));
    request.prompt_tokens = count_of(input);
    request.output_tokens =
        count_of(any_of(&values, {"gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"}));
    request.cached_tokens = count_of(
        any_of(&values, {"gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens"}));
    const std::optional<int64_t> first = seconds_ns(
        any_of(&values, {"gen_ai.latency.time_to_first_token", "gen_ai.response.time_to_first_chunk"}));
    if (first && request.start_ns) request.first_token_ns = *request.start_ns + *first;
    request.prompt = texts_of(any_of(&values, {"gen_ai.system_instructions"}));
    const std::vector<LoggedText> rest = texts_of(messages);
    request.prompt.insert(request.prompt.end(), rest.begin(), rest.end());
    if (rest.empty()) request.prompt.clear();
    request.output = answer_of(any_of(&values, {"gen_ai.output.messages", "gen_ai.output.text"}));
    const json* const status = nested(&span, {"status", "code"});
    request.failed = count_of(status) == kStatusError || text_of(status) == "STATUS_CODE_ERROR";
    log_.requests.push_back(std::move(request));
  }

  RequestLog& log_;
};

}  // namespace

Result<void> import_otel(const std::string& path, const ImportOptions& options, TraceSink* sink) {
  RequestLog log;
  log.format = "otel";
  log.url = "https://opentelemetry.io/docs/specs/semconv/gen-ai/";
  log.session_field = "gen_ai.conversation.id, session.id or the trace id";
  log.tokens_hint = "spans with gen_ai.usage.input_tokens and gen_ai.usage.output_tokens";
  log.time_resolution_ns = 1;
  OtelReader reader(&log);
  const auto take = [&](const json& object, const std::string& where) -> Result<void> {
    reader.add_object(object, where);
    return {};
  };
  if (auto good = for_each_object(path, {}, take); !good) return good;
  if (log.requests.empty())
    return make_error(path, fmt::format("none of its {} spans is a model call", reader.spans),
                      "spans with gen_ai.operation.name=chat, or with gen_ai.usage.input_tokens");
  return write_request_log(std::move(log), path, options, sink);
}

}  // namespace kvtwin
