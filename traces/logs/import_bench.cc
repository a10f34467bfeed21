// bench: the result of `vllm bench serve --save-result --save-detailed`, one JSON object. Arrays by request:
// input_lens, output_lens, start_times (s of a monotonic clock), ttfts (s), itls (s, a list each), errors.
// SGLang's bench_serving --output-details writes the same arrays without start_times.
// requests: kvtwin's own request log (requests.jsonl of a run, or a server's own): request_id, input_toks,
// output_toks, and in seconds queued_ts or arrival_time, first_token_ts, last_token_ts.
//
// Sources: vllm/benchmarks/serve.py (result_json), sglang/bench_serving.py; scenarios/output/compare.h.

#include <fmt/format.h>

#include "traces/importers/import_logs.h"
#include "traces/logs/log_json.h"

namespace kvtwin {
namespace {

using nlohmann::json;

constexpr const char* kDetailed =
    "a result with single requests: vllm bench serve --save-result --save-detailed";

Result<const json*> list_of(const json& object, const char* name, size_t count, const std::string& where) {
  const json* const list = any_of(&object, {name});
  if (list == nullptr || !list->is_array())
    return make_error(where, fmt::format("has no list \"{}\"", name), kDetailed);
  if (count != SIZE_MAX && list->size() != count)
    return make_error(where, fmt::format("{} has {} values, input_lens {}", name, list->size(), count),
                      kDetailed);
  return list;
}

Result<void> add_result(const json& object, const std::string& where, RequestLog* log) {
  const Result<const json*> prompts = list_of(object, "input_lens", SIZE_MAX, where);
  if (!prompts) return tl::unexpected<Error>(prompts.error());
  const size_t count = (*prompts)->size();
  if (any_of(&object, {"start_times"}) == nullptr)
    return make_error(where, "has no list \"start_times\", so requests have no arrivals",
                      "vllm bench serve --save-detailed writes it (SGLang's bench_serving does not)");
  std::vector<const json*> lists = {*prompts};
  for (const char* const name : {"output_lens", "start_times", "ttfts", "itls"}) {
    const Result<const json*> list = list_of(object, name, count, where);
    if (!list) return tl::unexpected<Error>(list.error());
    lists.push_back(*list);
  }
  const json* const errors = any_of(&object, {"errors"});
  for (size_t i = 0; i < count; ++i) {
    LoggedRequest request;
    request.where = fmt::format("{}: request {}", where, i);
    request.model = text_of(any_of(&object, {"model_id"}));
    request.prompt_tokens = count_of(&(*lists[0])[i]);
    request.output_tokens = count_of(&(*lists[1])[i]);
    request.start_ns = seconds_ns(&(*lists[2])[i]);
    if (!request.start_ns)
      return make_error(request.where, "its start time is no number of seconds", kDetailed);
    const std::optional<int64_t> first = seconds_ns(&(*lists[3])[i]), gaps = seconds_ns(&(*lists[4])[i]);
    if (request.start_ns && first) request.first_token_ns = *request.start_ns + *first;
    if (request.first_token_ns && gaps) request.end_ns = *request.first_token_ns + *gaps;
    const bool error =
        errors != nullptr && errors->is_array() && i < errors->size() && !text_of(&(*errors)[i]).empty();
    request.failed = error || request.output_tokens.value_or(1) == 0;
    log->requests.push_back(std::move(request));
  }
  return {};
}

}  // namespace

Result<void> import_bench(const std::string& path, const ImportOptions& options, TraceSink* sink) {
  RequestLog log;
  log.format = "bench";
  log.url = "https://github.com/vllm-project/vllm";
  log.tokens_hint = kDetailed;
  size_t results = 0;
  const auto take = [&](const json& object, const std::string& where) -> Result<void> {
    if (results++ > 0)
      return make_error(where, "is a second result", "one result a trace: import single lines");
    return add_result(object, where, &log);
  };
  if (auto good = for_each_object(path, {.run_key = {}, .number_suffix = {}, .sum_key = "itls"}, take); !good)
    return good;
  return write_request_log(std::move(log), path, options, sink);
}

Result<void> import_requests(const std::string& path, const ImportOptions& options, TraceSink* sink) {
  RequestLog log;
  log.format = "requests";
  log.session_field = "session_id";
  log.tokens_hint = "input_toks and output_toks in each line";
  const auto take = [&](const json& object, const std::string& where) -> Result<void> {
    LoggedRequest request;
    request.where = where;
    request.session = text_of(any_of(&object, {"session_id", "session"}));
    request.prompt_tokens = count_of(any_of(&object, {"input_toks"}));
    request.output_tokens = count_of(any_of(&object, {"output_toks"}));
    request.start_ns = seconds_ns(any_of(&object, {"queued_ts", "arrival_time"}));
    request.first_token_ns = seconds_ns(any_of(&object, {"first_token_ts"}));
    request.end_ns = seconds_ns(any_of(&object, {"last_token_ts"}));
    log.requests.push_back(std::move(request));
    return {};
  };
  if (auto good = for_each_object(path, {}, take); !good) return good;
  return write_request_log(std::move(log), path, options, sink);
}

}  // namespace kvtwin
