// guidellm: benchmarks.json of `guidellm benchmark`: benchmarks[].requests.successful[], incomplete and
// errored. A request has request_start_time and request_end_time (Unix s), prompt_tokens and output_tokens,
// and in info: conversation_id, timings.request_start, first_token_iteration, request_end. Older versions
// have start_time, end_time, first_token_time, prompt_tokens and output_tokens. A sweep has several
// benchmarks at different rates; they ran one after the other and make one trace.
//
// Sources: vllm-project/guidellm, src/guidellm/schemas/request_stats.py (GenerativeRequestStats), info.py
// (RequestInfo, RequestTimings), benchmark/schemas (sample_requests).

#include <fmt/format.h>

#include "traces/importers/import_logs.h"
#include "traces/importers/importers.h"
#include "traces/logs/log_json.h"

namespace kvtwin {
namespace {

using nlohmann::json;

constexpr const char* kAllRequests =
    "a result with all requests: guidellm benchmark without --sample-requests";

void add_request(const json& row, const std::string& where, bool failed, RequestLog* log) {
  LoggedRequest request;
  request.where = where;
  const json* const info = any_of(&row, {"info", "scheduler_info"});
  const json* const timings = any_of(info, {"timings"});
  const auto time = [&](std::initializer_list<const char*> in_row, const char* in_timings) {
    const json* const value = any_of(&row, in_row);
    return unix_ns(value != nullptr ? value : any_of(timings, {in_timings}));
  };
  request.session = text_of(any_of(info, {"conversation_id"}));
  request.start_ns = time({"request_start_time", "start_time"}, "request_start");
  request.end_ns = time({"request_end_time", "end_time"}, "request_end");
  request.first_token_ns = time({"first_token_time"}, "first_token_iteration");
  request.prompt_tokens = count_of(any_of(&row, {"prompt_tokens"}));
  request.output_tokens = count_of(any_of(&row, {"output_tokens"}));
  const json* const arguments = any_of(&row, {"request_args"});
  const Result<CompactJson> body = arguments != nullptr && arguments->is_string()
                                       ? parse_compact_json(arguments->get_ref<const std::string&>(), {})
                                       : CompactJson{};
  if (body) {
    const json* const inner = any_of(&body->tree, {"body", "json"});
    request.prompt = prompt_of_body(inner != nullptr ? inner : &body->tree);
  }
  if (request.prompt.empty()) request.prompt = texts_of(any_of(&row, {"prompt"}));
  if (const json* const output = any_of(&row, {"output"})) request.output = answer_of(output);
  request.failed = failed;
  log->requests.push_back(std::move(request));
}

Result<void> add_benchmark(const json& benchmark, const std::string& where, const ImportOptions& options,
                           RequestLog* log) {
  const json* const requests = any_of(&benchmark, {"requests"});
  if (requests == nullptr || !requests->is_object())
    return make_error(where, "has no \"requests\"", kAllRequests);
  const size_t before = log->requests.size();
  for (const char* const status : {"successful", "incomplete", "errored"}) {
    const json* const rows = any_of(requests, {status});
    if (rows == nullptr || !rows->is_array()) continue;
    for (const json& row : *rows)
      add_request(row, fmt::format("{}: {} {}", where, status, log->requests.size()),
                  status != std::string_view("successful"), log);
  }
  const uint64_t kept = log->requests.size() - before;
  for (const json* const totals : {nested(&benchmark, {"metrics", "request_totals", "total"}),
                                   nested(&benchmark, {"run_stats", "requests_made", "total"})}) {
    const std::optional<uint64_t> total = count_of(totals);
    if (!total || *total <= kept) continue;
    note(options, fmt::format("{} has {} of its {} requests: the load of the trace is too low; import {}",
                              where, kept, *total, kAllRequests));
    break;
  }
  return {};
}

}  // namespace

Result<void> import_guidellm(const std::string& path, const ImportOptions& options, TraceSink* sink) {
  RequestLog log;
  log.format = "guidellm";
  log.url = "https://github.com/vllm-project/guidellm";
  log.session_field = "info.conversation_id";
  log.tokens_hint = "GuideLLM takes them from the server's usage, or from its tokenizer (--processor)";
  const auto take = [&](const json& object, const std::string& where) -> Result<void> {
    const json* const benchmarks = any_of(&object, {"benchmarks"});
    if (benchmarks == nullptr || !benchmarks->is_array())
      return make_error(where, "has no list \"benchmarks\"", "guidellm benchmark --outputs=json");
    size_t index = 0;
    for (const json& benchmark : *benchmarks) {
      auto good = add_benchmark(benchmark, fmt::format("{}: benchmark {}", where, index++), options, &log);
      if (!good) return good;
    }
    return {};
  };
  if (auto good = for_each_object(path, {}, take); !good) return good;
  return write_request_log(std::move(log), path, options, sink);
}

}  // namespace kvtwin
