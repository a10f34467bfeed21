// Recognises request logs by the fields in their first bytes. A quoted name cannot occur inside a JSON
// string, where its quotes are escaped.

#include "traces/importers/import_logs.h"

namespace kvtwin {

std::string log_format_of(std::string_view start) {
  const auto holds = [&start](std::string_view text) { return start.find(text) != std::string_view::npos; };
  const size_t begin = start.find_first_not_of(" \t\r\n");
  const char first = begin == std::string_view::npos ? ' ' : start[begin];
  if (first != '{' && first != '[') return {};
  if (holds("\"input_toks\"") && (holds("\"queued_ts\"") || holds("\"first_token_ts\""))) return "requests";
  if (holds("\"request_start_ns\"") || holds("\"aiperf_version\"")) return "aiperf";
  if (holds("\"payloads\"") && holds("\"session_id\"")) return "aiperf";
  if (holds("\"resourceSpans\"") || holds("\"resource_spans\"") || holds("\"gen_ai.")) return "otel";
  if (holds("\"guidellm_version\"") || holds("\"generative_benchmark")) return "guidellm";
  if (holds("\"input_lens\"") || (holds("\"request_throughput\"") && holds("\"total_input_tokens\"")))
    return "bench";
  if (holds("\"load_summary\"") && holds("\"successes\"")) return "inference-perf";
  if (first == '[' && holds("\"start_time\"") && holds("\"end_time\"") && holds("\"request\":") &&
      !holds("\"trace_id\""))
    return "inference-perf";
  if (holds("\"standard_logging_object\"") ||
      (holds("\"call_type\"") && holds("\"startTime\"") && holds("\"prompt_tokens\"")))
    return "litellm";
  if (holds("\"GENERATION\"") || holds("\"completionStartTime\"") || holds("\"usageDetails\"") ||
      holds("\"usage_details\""))
    return "langfuse";
  const bool answer = holds("\"usage\"") || holds("\"choices\"") || holds("\"response\"");
  const bool question = holds("\"messages\"") || holds("\"request\"") || holds("\"prompt\"");
  if (holds("\"model\"") && (answer || question)) return "openai";
  return {};
}

}  // namespace kvtwin
