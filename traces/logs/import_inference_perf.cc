// inference-perf: per_request_lifecycle_metrics.json, a list of
//   start_time, end_time  s of a monotonic clock
//   request, response     text: the JSON bodies
//   info                  request_metrics.text.input_tokens (older: input_tokens), response_metrics or info
//                         itself: output_tokens, output_token_times (s), server_usage
//   error                 null, or error_type and error_msg
// It has no session ids; chains of messages show the sessions.
//
// Sources: kubernetes-sigs/inference-perf, inference_perf/reportgen/base.py (per_request_lifecycle_metrics)
// and inference_perf/apis/base.py (InferenceInfo, ResponseMetrics).

#include <fmt/format.h>

#include "traces/importers/import_logs.h"
#include "traces/logs/log_json.h"

namespace kvtwin {
namespace {

using nlohmann::json;

constexpr const char* kPerRequest =
    "per_request_lifecycle_metrics.json; inference-perf writes it with report.request_lifecycle.per_request: "
    "true";

// A field of `request` or `response`: text that holds JSON, or JSON itself.
json body_of(const json* field) {
  if (field == nullptr) return nullptr;
  if (!field->is_string()) return *field;
  const Result<CompactJson> parsed = parse_compact_json(field->get_ref<const std::string&>(), {});
  return parsed ? parsed->tree : json(nullptr);
}

std::optional<uint64_t> first_count(std::initializer_list<const json*> values) {
  for (const json* const value : values) {
    if (const std::optional<uint64_t> count = count_of(value)) return count;
  }
  return std::nullopt;
}

Result<void> add(const json& row, const std::string& where, RequestLog* log) {
  if (any_of(&row, {"load_summary", "successes"}) != nullptr)
    return make_error(where, "is a summary without single requests", kPerRequest);
  if (any_of(&row, {"start_time"}) == nullptr) return make_error(where, "has no \"start_time\"", kPerRequest);
  LoggedRequest request;
  request.where = where;
  request.start_ns = seconds_ns(any_of(&row, {"start_time"}));
  request.end_ns = seconds_ns(any_of(&row, {"end_time"}));
  const json* const info = any_of(&row, {"info"});
  const json* const metrics = any_of(info, {"response_metrics"});
  const json* const usage = any_of(metrics, {"server_usage"});
  request.prompt_tokens = first_count({any_of(usage, {"prompt_tokens"}), any_of(info, {"input_tokens"}),
                                       nested(info, {"request_metrics", "text", "input_tokens"})});
  request.output_tokens = first_count({any_of(usage, {"completion_tokens"}),
                                       any_of(metrics, {"output_tokens"}), any_of(info, {"output_tokens"})});
  request.cached_tokens = count_of(nested(usage, {"prompt_tokens_details", "cached_tokens"}));
  for (const json* const times :
       {any_of(metrics, {"output_token_times"}), any_of(info, {"output_token_times"})}) {
    if (times != nullptr && times->is_array() && !times->empty() && !request.first_token_ns)
      request.first_token_ns = seconds_ns(&times->front());
  }
  const json body = body_of(any_of(&row, {"request"}));
  request.model = text_of(any_of(&body, {"model"}));
  request.prompt = prompt_of_body(&body);
  const json answer = body_of(any_of(&row, {"response"}));
  request.output = answer_of(&answer);
  request.failed = any_of(&row, {"error"}) != nullptr;
  log->requests.push_back(std::move(request));
  return {};
}

}  // namespace

Result<void> import_inference_perf(const std::string& path, const ImportOptions& options, TraceSink* sink) {
  RequestLog log;
  log.format = "inference-perf";
  log.url = "https://github.com/kubernetes-sigs/inference-perf";
  log.tokens_hint = "inference-perf counts them with the server's tokenizer";
  const auto take = [&](const json& row, const std::string& where) { return add(row, where, &log); };
  if (auto good = for_each_object(path, {}, take); !good) return good;
  return write_request_log(std::move(log), path, options, sink);
}

}  // namespace kvtwin
