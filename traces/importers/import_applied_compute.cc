#include <fmt/format.h>

#include "traces/format/compact_json.h"
#include "traces/format/json_fields.h"
#include "traces/format/session_builder.h"
#include "traces/format/source_files.h"
#include "traces/importers/import_chat_logs.h"
#include "traces/importers/importers.h"

namespace kvtwin {
namespace {

using nlohmann::json;

constexpr uint64_t kRowTokensMax = uint64_t{1} << 29;  // per session
constexpr size_t kTurnsMax = 8'192;                    // each prompt lists every earlier turn

// A list of counts or of seconds. `fields` records invalid entries.
std::vector<uint32_t> counts_of(const char* name, JsonFields* fields, uint64_t* sum) {
  std::vector<uint32_t> out;
  for (const json& value : fields->list(name)) {
    const json entry = {{name, value}};
    JsonFields one(entry, fields->where());
    out.push_back(one.u32(name));
    *sum += out.back();
    if (one.failed()) fields->problem(one.error().value().what, one.error().value().hint);
  }
  return out;
}

std::vector<int64_t> times_of(const char* name, JsonFields* fields) {
  std::vector<int64_t> out;
  for (const json& value : fields->list(name)) {
    const json entry = {{name, value}};
    JsonFields one(entry, fields->where());
    out.push_back(one.time_ns(name, 1e9));
    if (one.failed()) fields->problem(one.error().value().what, one.error().value().hint);
  }
  return out;
}

struct ComputeRow {
  uint32_t prompt = 0;
  std::vector<uint32_t> answers, results;
  std::vector<int64_t> waits_ns;
  uint32_t last = 0;
};

Result<ComputeRow> read_row(const json& tree, const std::string& where) {
  JsonFields fields(tree, where);
  ComputeRow row;
  row.prompt = fields.u32("input_prompt_length");
  row.last = fields.u32("final_assistant_response_length");
  uint64_t sum = uint64_t{row.prompt} + row.last;
  row.answers = counts_of("assistant_response_length", &fields, &sum);
  row.results = counts_of("tool_call_output_length", &fields, &sum);
  row.waits_ns = times_of("tool_call_latency", &fields);
  const std::optional<uint64_t> turns = fields.u64_if("num_turns");
  if (fields.failed()) return fields.error();
  const size_t n = row.answers.size();
  if (row.results.size() != n || row.waits_ns.size() != n) {
    return make_error(where,
                      fmt::format("{} answers, {} tool outputs and {} tool times", n, row.results.size(),
                                  row.waits_ns.size()),
                      "one of each per turn");
  }
  // Some writers count the final answer as a turn.
  if (turns && *turns != n && *turns != n + 1) {
    return make_error(
        where, fmt::format("num_turns is {}, but there are {} answers before the final one", *turns, n));
  }
  if (row.prompt == 0) return make_error(where, "input_prompt_length is 0", "a prompt of at least one token");
  if (n > kTurnsMax)
    return make_error(where, fmt::format("{} turns", n), fmt::format("at most {}", kTurnsMax));
  if (sum > kRowTokensMax)
    return make_error(where, fmt::format("{} tokens in one session", sum),
                      fmt::format("at most {}", kRowTokensMax));
  return row;
}

v1::Session session_of(const ComputeRow& row, uint64_t number) {
  SessionBuilder session(fmt::format("row-{:06}", number), "agent", 0);
  AgentThread agent(&session, session.add_agent("main", "main", 0));
  agent.say({.role = v1::ROLE_UNKNOWN, .tokens = row.prompt});
  const auto answer = [&](uint32_t tokens) {
    std::vector<SpanSpec> output;
    if (tokens > 0) output.push_back({.role = v1::ASSISTANT, .tokens = tokens});
    std::vector<Piece> made;
    agent.request(output, &made);
    return made.empty() ? Piece{} : made[0];
  };
  for (size_t i = 0; i < row.answers.size(); ++i) {
    const Piece call_span = answer(row.answers[i]);
    agent.tool(1, call_span, {.tokens = row.results[i]}, row.waits_ns[i]);
  }
  answer(row.last);
  return session.take();
}

}  // namespace

Result<void> import_applied_compute(const std::string& path, const ImportOptions&, TraceSink* sink) {
  v1::TraceHeader header = imported_header("applied-compute", path);
  header.add_models("unknown");
  header.add_tool_names("unknown");
  header.set_time_resolution_ns(1);
  header.set_session_arrivals(v1::ARR_NONE);
  header.set_request_arrivals(v1::ARR_NONE);
  add_policy(&header, "LlmRequest.prompt_tokens", v1::DERIVED);
  add_policy(&header, "LlmRequest.output_tokens", v1::RECORDED);
  add_policy(&header, "ToolCall.duration_ns", v1::RECORDED);
  add_policy(&header, "Span.tokens", v1::RECORDED);
  // By the names of the fields; those of the prompt are unknown.
  add_policy(&header, "Span.role", v1::DERIVED);
  if (Result<void> good = sink->header(header); !good) return good;
  uint64_t rows = 0;
  const auto take = [&](uint64_t number, std::string_view line) -> Result<void> {
    const std::string where = fmt::format("{}:{}", path, number);
    const Result<CompactJson> parsed = parse_compact_json(line, {});
    if (!parsed) return make_error(where, parsed.error().what, "one JSON object per line");
    const Result<ComputeRow> row = read_row(parsed->tree, where);
    if (!row) return tl::unexpected(row.error());
    ++rows;
    return sink->session(session_of(*row, number));
  };
  if (Result<void> good = for_each_line(path, take); !good) return good;
  if (rows == 0) return make_error(path, "no rows in it", "one JSON object per line");
  return sink->done();
}

}  // namespace kvtwin
