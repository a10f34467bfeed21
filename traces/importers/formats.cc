#include "traces/importers/formats.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "traces/format/reader.h"
#include "traces/format/writer.h"
#include "traces/importers/import_chat_logs.h"
#include "traces/importers/import_logs.h"
#include "traces/importers/importers.h"

namespace kvtwin {
namespace {

Result<void> import_kvtwin(const std::string& path, const ImportOptions&, TraceSink* sink) {
  const auto footer = read_trace(path, sink);
  if (!footer) return tl::unexpected(footer.error());
  return {};
}

std::unique_ptr<TraceSink> export_kvtwin(const std::string& path) {
  return std::make_unique<TraceWriter>(path);
}

const TraceFormat* find_format(const std::string& name) {
  for (const TraceFormat& format : formats()) {
    if (format.name == name) return &format;
  }
  return nullptr;
}

tl::unexpected<Error> unknown_format(const std::string& name, bool exporting) {
  std::vector<std::string> names;
  for (const TraceFormat& format : formats()) {
    if (!exporting || format.exporter != nullptr) names.push_back(format.name);
  }
  return make_error("format",
                    fmt::format("'{}' is not a format that can be {}", name, exporting ? "written" : "read"),
                    fmt::format("{}{}", fmt::join(names, ", "), exporting ? "" : ", auto"));
}

}  // namespace

const std::vector<TraceFormat>& formats() {
  static const std::vector<TraceFormat> kFormats = {
      {"kvtwin", "the canonical trace that every command reads", import_kvtwin, export_kvtwin},
      {"weka", "WEKA Claude Code sessions: a directory, one .json, or an archive (tar.xz)", import_weka,
       export_weka},
      {"mooncake", "Mooncake JSONL: full prompts as hash ids; session_id makes sessions", import_mooncake,
       export_mooncake},
      {"mooncake-delta", "Mooncake JSONL whose rows hold only what is new in their session",
       import_mooncake_delta, nullptr},
      {"agentic_mooncake", "Mooncake JSONL with request_id, wait_for and tool waits", import_agentic_mooncake,
       nullptr},
      {"azure", "Azure LLM inference CSV: TIMESTAMP,ContextTokens,GeneratedTokens", import_azure,
       export_azure},
      {"llmservingsim", "LLMServingSim JSONL with token ids, flat or with sub_requests", import_llmservingsim,
       nullptr},
      {"claude-code", "Claude Code's own logs (JSONL): a file, a directory with all below it, or an archive",
       import_claude_code, nullptr},
      {"tau-bench", "tau-bench results (a JSON list of trajectories): a file, directory or archive",
       import_tau_bench, nullptr},
      {"applied-compute", "Applied Compute's agentic workloads (JSONL, one session a row)",
       import_applied_compute, nullptr},
      {"bench", "vllm bench serve --save-result --save-detailed: one JSON result", import_bench, nullptr},
      {"aiperf", "AIPerf and AgentX: profile_export.jsonl, inputs.json, or their folder", import_aiperf,
       nullptr},
      {"inference-perf", "inference-perf: per_request_lifecycle_metrics.json", import_inference_perf,
       nullptr},
      {"guidellm", "GuideLLM: benchmarks.json", import_guidellm, nullptr},
      {"otel", "OpenTelemetry GenAI spans: OTLP JSON", import_otel, nullptr},
      {"litellm", "LiteLLM: StandardLoggingPayload or spend logs (JSON, JSONL)", import_litellm, nullptr},
      {"langfuse", "Langfuse: observations or a trace (JSON, JSONL)", import_langfuse, nullptr},
      {"openai", "a log of OpenAI API requests and responses (JSONL)", import_openai, nullptr},
      {"requests", "kvtwin's requests.jsonl, or a server's log of that form", import_requests, nullptr},
  };
  return kFormats;
}

Result<void> import_trace(const std::string& format, const std::string& path, const ImportOptions& options,
                          TraceSink* sink) {
  std::string name = format;
  if (name == "auto") {
    const auto guessed = guess_format(path);
    if (!guessed) return tl::unexpected(guessed.error());
    name = *guessed;
  }
  const TraceFormat* const found = find_format(name);
  if (found == nullptr || found->import == nullptr) return unknown_format(format, false);
  try {
    return found->import(path, options, sink);
  } catch (const std::exception& exception) {  // bad_alloc, and exceptions of the libraries below
    return make_error(path, fmt::format("importing {} failed: {}", name, exception.what()));
  }
}

Result<std::unique_ptr<TraceSink>> make_exporter(const std::string& format, const std::string& path) {
  const TraceFormat* const found = find_format(format);
  if (found == nullptr || found->exporter == nullptr) return unknown_format(format, true);
  return found->exporter(path);
}

Result<PrefixSharing> parse_sharing(const std::string& text) {
  if (text == "none") return PrefixSharing::kNone;
  if (text == "equal-prefix") return PrefixSharing::kEqualPrefix;
  if (text == "all") return PrefixSharing::kAll;
  return make_error("--sharing", fmt::format("'{}'", text), "none, equal-prefix or all");
}

}  // namespace kvtwin
