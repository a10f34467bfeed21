// litellm: LiteLLM's StandardLoggingPayload, one a line or a list (callbacks such as s3 or gcs_bucket; also
// inside "standard_logging_object"), and rows of /spend/logs (LiteLLM_SpendLogs):
//   startTime, endTime, completionStartTime  Unix s, or ISO text in spend logs
//   prompt_tokens, completion_tokens         metadata.usage_object has cached tokens
//   trace_id, session_id                     calls of one overall request, one session
//   messages, response                       text; spend logs have it with store_prompts_in_spend_logs: true
//   status                                   success or failure
//
// Sources: docs.litellm.ai/docs/proxy/logging_spec; litellm schema.prisma (LiteLLM_SpendLogs);
// docs.litellm.ai/docs/proxy/ui_logs.

#include <fmt/format.h>

#include "traces/importers/import_logs.h"
#include "traces/logs/log_json.h"

namespace kvtwin {
namespace {

using nlohmann::json;

Result<void> add_litellm_row(const json& row, const std::string& where, RequestLog* log) {
  const json* const inner = any_of(&row, {"standard_logging_object"});
  const json* const call = inner != nullptr ? inner : &row;
  if (any_of(call, {"startTime", "start_time"}) == nullptr)
    return make_error(where, "has no \"startTime\"", "StandardLoggingPayload, or rows of /spend/logs");
  LoggedRequest request;
  request.where = where;
  request.session = text_of(any_of(call, {"session_id", "litellm_session_id", "trace_id"}));
  request.model = text_of(any_of(call, {"model", "model_group"}));
  request.start_ns = unix_ns_or(any_of(call, {"startTime", "start_time"}), &request.unread_time);
  request.end_ns = unix_ns(any_of(call, {"endTime", "end_time"}));
  request.first_token_ns = unix_ns(any_of(call, {"completionStartTime", "completion_start_time"}));
  request.prompt_tokens = count_of(any_of(call, {"prompt_tokens"}));
  request.output_tokens = count_of(any_of(call, {"completion_tokens"}));
  request.cached_tokens =
      count_of(nested(call, {"metadata", "usage_object", "prompt_tokens_details", "cached_tokens"}));
  request.prompt = texts_of(any_of(call, {"messages"}));
  request.output = answer_of(any_of(call, {"response"}));
  request.failed = text_of(any_of(call, {"status"})) == "failure";
  const std::string type = text_of(any_of(call, {"call_type"}));
  const bool other = type.find("embedding") != std::string::npos || type.find("image") != std::string::npos;
  if (!other) log->requests.push_back(std::move(request));
  return {};
}

}  // namespace

Result<void> import_litellm(const std::string& path, const ImportOptions& options, TraceSink* sink) {
  RequestLog log;
  log.format = "litellm";
  log.url = "https://docs.litellm.ai/docs/proxy/logging_spec";
  log.session_field = "session_id or trace_id";
  log.tokens_hint = "LiteLLM records prompt_tokens and completion_tokens of finished calls";
  const auto take = [&](const json& row, const std::string& where) -> Result<void> {
    const json* const list = any_of(&row, {"data"});  // /spend/logs/v2 pages
    if (list == nullptr || !list->is_array()) return add_litellm_row(row, where, &log);
    for (const json& one : *list) {
      if (auto good = add_litellm_row(one, where, &log); !good) return good;
    }
    return {};
  };
  if (auto good = for_each_object(path, {}, take); !good) return good;
  return write_request_log(std::move(log), path, options, sink);
}

}  // namespace kvtwin
