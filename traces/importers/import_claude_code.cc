#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <tuple>
#include <vector>

#include "traces/format/source_files.h"
#include "traces/importers/claude_log.h"
#include "traces/importers/import_chat_logs.h"
#include "traces/importers/importers.h"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

// A directory and all directories below it, in order of names: Claude Code stores sub-agents below sessions.
Result<std::vector<std::string>> places_below(const std::string& path) {
  std::vector<std::string> places = {path};
  std::error_code error;
  if (!fs::is_directory(path, error)) return places;
  for (fs::recursive_directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->is_directory(ignored) && !it->is_symlink(ignored)) places.push_back(it->path().string());
  }
  if (error) return make_error(path, fmt::format("cannot be listed: {}", error.message()));
  std::sort(places.begin() + 1, places.end());
  return places;
}

v1::TraceHeader header_of(const std::string& path, int64_t origin_ns, const claude::Names& models,
                          const claude::Names& tools) {
  v1::TraceHeader header = imported_header("claude-code", path);
  v1::Tokenizer* tokenizer = header.add_tokenizers();
  tokenizer->set_name("as recorded");
  tokenizer->set_prov(v1::RECORDED);
  for (const std::string& model : models.list()) header.add_models(model);
  if (models.list().empty()) header.add_models(std::string("unknown"));
  for (const std::string& tool : tools.list()) header.add_tool_names(tool);
  header.set_session_arrivals(v1::ARR_OPEN_LOOP);
  header.set_request_arrivals(v1::ARR_CLOSED_LOOP);
  header.set_origin_unix_ns(static_cast<uint64_t>(origin_ns));
  header.set_time_resolution_ns(1e6);
  add_policy(&header, "Session.arrival_at_ns", v1::RECORDED);
  add_policy(&header, "LlmRequest.prompt_tokens", v1::DERIVED);  // input + cache read + cache write
  add_policy(&header, "LlmRequest.output_tokens",
             v1::RECORDED);  // overridden where the log has the first usage of the stream
  add_policy(&header, "LlmRequest.recorded_at_ns", v1::DERIVED);  // the last record before the answer
  add_policy(&header, "LlmRequest.recorded_service_ns", v1::DERIVED);
  add_policy(&header, "LlmRequest.think_ns", v1::DERIVED);
  add_policy(&header, "ToolCall.duration_ns", v1::DERIVED);  // result - emission
  add_policy(&header, "Dep.at_output_token", v1::ESTIMATED);
  add_policy(&header, "Dep.delay_ns", v1::DERIVED);
  add_policy(&header, "Span.role", v1::RECORDED);
  add_policy(&header, "Span.tokens", v1::ESTIMATED);  // fractions of recorded sums
  return header;
}

void tell(const ImportOptions& options, const claude::Counts& counts, uint64_t titles, uint64_t empty) {
  const auto say = [&](uint64_t count, const char* what) {
    if (count > 0) note(options, fmt::format("{} {}", count, what));
  };
  say(counts.estimated,
      "requests have output tokens estimated from their text: the log kept the stream's first usage");
  say(counts.failed, "requests ended in an API error: no output, prompt size estimated");
  say(counts.rewrites, "prompts are smaller than their history: its end was cut");
  say(counts.unattached, "sub-agent logs that ran before every request were left out");
  say(empty, "sessions without requests were left out");
  say(titles, "\"summary\" records were passed over: they are titles of conversations, not compactions");
}

}  // namespace

Result<void> import_claude_code(const std::string& path, const ImportOptions& options, TraceSink* sink) {
  claude::Logs logs;
  const Result<std::vector<std::string>> places = places_below(path);
  if (!places) return tl::unexpected(places.error());
  const auto wanted = [](const std::string& name) { return name.ends_with(".jsonl"); };
  const auto take = [&](const std::string& name, std::string_view bytes) { return logs.add(name, bytes); };
  for (const std::string& place : *places) {
    if (Result<void> good = for_each_document(place, wanted, take); !good) return good;
  }
  int64_t origin_ns = INT64_MAX;
  for (const claude::Log& log : logs.logs()) {
    for (const claude::Record& record : log.records) origin_ns = std::min(origin_ns, record.at_ns);
  }
  // In order of time and not of files, so that a directory and its archive give the same trace.
  std::stable_sort(logs.logs().begin(), logs.logs().end(), [](const claude::Log& a, const claude::Log& b) {
    return std::tie(a.records.front().at_ns, a.id) < std::tie(b.records.front().at_ns, b.id);
  });
  claude::Names models, tools;
  claude::Counts counts;
  HeldSessions sessions;
  uint64_t empty = 0;
  for (claude::Log& log : logs.logs()) {
    const Result<v1::Session> session = claude::build_session(log, origin_ns, &models, &tools, &counts);
    if (!session) return make_error(path, session.error().text());
    std::vector<claude::Record>().swap(log.records);
    if (session->nodes_size() == 0)
      ++empty;
    else if (Result<void> held = sessions.hold("", *session); !held)
      return make_error(path, held.error().text());
  }
  if (sessions.size() == 0) {
    return make_error(path, "no requests of Claude Code in it",
                      "JSON lines with \"type\":\"assistant\" and a \"message\"");
  }
  tell(options, counts, logs.titles(), empty);
  if (Result<void> good = sink->header(header_of(path, origin_ns, models, tools)); !good) return good;
  std::vector<uint32_t> same(std::max<size_t>(1, models.list().size()));
  std::iota(same.begin(), same.end(), 0u);
  if (Result<void> good = sessions.emit(same, sink); !good) return good;
  return sink->done();
}

}  // namespace kvtwin
