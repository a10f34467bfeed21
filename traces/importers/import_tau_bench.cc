#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "traces/format/compact_json.h"
#include "traces/format/json_fields.h"
#include "traces/format/session_builder.h"
#include "traces/format/source_files.h"
#include "traces/importers/import_chat_logs.h"
#include "traces/importers/importers.h"
#include "traces/synth/synthesize_draws.h"

// A result file holds messages only: no tool schemas, no chat template
// (docs/design/trace-formats.md#trap-11), no times, no token counts. Counts are estimated from the text: with
// 4.9 characters per token of prose and 2.6 of JSON the two recorded sets are within 6 % of a real tokenizer
// at the median prompt. Schemas are estimated from the number of tools that the file uses, and the template
// as 4 tokens per message.

namespace kvtwin {
namespace {

using nlohmann::json;

constexpr uint32_t kSchemaTokens = 180;  // per tool: BFCL's sets have 148 to 240
constexpr uint32_t kTemplateTokens = 4;  // per message
constexpr uint32_t kToolCallTokens = 8;  // of a request, in addition to its arguments
constexpr size_t kMessagesMax = 8'192;   // each prompt lists every earlier message
constexpr uint64_t kCharsMax = uint64_t{64} << 20;

enum class TauDraw : uint64_t { kTool, kUser };
// In milliseconds. Tools are look-ups in a local database; another model simulates the user.
constexpr QuantilePoint kToolTime[] = {{0, 1}, {100'000, 50}};
constexpr QuantilePoint kUserTime[] = {{0, 800}, {50'000, 2'000}, {90'000, 4'000}, {100'000, 10'000}};

uint32_t prose_tokens(uint64_t chars) { return static_cast<uint32_t>(std::min(chars, kCharsMax) * 10 / 49); }
uint32_t json_tokens(uint64_t chars) { return static_cast<uint32_t>(std::min(chars, kCharsMax) * 10 / 26); }

struct ToolUse {
  std::string id, name;
  uint64_t chars = 0;  // of name and arguments
};
struct Message {
  std::string role, tool_call_id;
  uint64_t chars = 0;
  std::vector<ToolUse> requests;
};
struct Trajectory {
  std::string id;
  uint32_t table = 0;
  std::vector<Message> messages;
};

// The state of one import: system prompts and tools are shared, and known only at the end.
struct TauBenchImport {
  std::vector<Trajectory> trajectories;
  std::map<std::string, uint32_t> table_of;  // system prompt -> table
  std::vector<uint64_t> system_chars;        // of table i + 1
  std::vector<std::set<std::string>> tools;  // used by the sessions of table i + 1
  std::map<std::string, uint32_t> tool_index;
  std::vector<std::string> tool_names;

  uint32_t tool(const std::string& name) {
    const auto [at, fresh] = tool_index.try_emplace(name, static_cast<uint32_t>(tool_names.size()) + 1);
    if (fresh) tool_names.push_back(name);
    return at->second;
  }
  uint32_t table(const std::string& system) {
    const auto [at, fresh] = table_of.try_emplace(system, static_cast<uint32_t>(table_of.size()) + 1);
    if (fresh) {
      system_chars.push_back(system.size());
      tools.emplace_back();
    }
    return at->second;
  }
};

Result<Message> read_message(const json& tree, const std::string& where) {
  JsonFields fields(tree, where);
  Message message;
  message.role = fields.text("role");
  message.chars = fields.text_if("content").value_or("").size();
  message.tool_call_id = fields.text_if("tool_call_id").value_or("");
  for (const json& request : fields.list("tool_calls")) {
    JsonFields use(request, where + ": tool_calls");
    const json& function =
        request.is_object() && request.contains("function") ? request["function"] : request;
    JsonFields named(function, where + ": function");
    message.requests.push_back(
        {.id = use.text_if("id").value_or(""), .name = named.text("name"), .chars = 0});
    message.requests.back().chars =
        message.requests.back().name.size() + named.text_if("arguments").value_or("").size();
    if (use.failed()) return use.error();
    if (named.failed()) return named.error();
  }
  if (fields.failed()) return fields.error();
  return message;
}

Result<void> read_trajectory(const json& tree, const std::string& where, const std::string& name,
                             TauBenchImport* all) {
  JsonFields fields(tree, where);
  Trajectory trajectory;
  trajectory.id = fmt::format("{}-task{}-trial{}", name, fields.u64_if("task_id").value_or(0),
                              fields.u64_if("trial").value_or(0));
  const json& messages = fields.list("traj");
  if (fields.failed()) return fields.error();
  if (messages.size() > kMessagesMax)
    return make_error(where, fmt::format("{} messages", messages.size()),
                      fmt::format("at most {}", kMessagesMax));
  std::string system;
  for (size_t i = 0; i < messages.size(); ++i) {
    Result<Message> message = read_message(messages[i], fmt::format("{}.traj[{}]", where, i));
    if (!message) return tl::unexpected(message.error());
    if (i == 0 && message->role == "system")
      system = JsonFields(messages[i], where).text_if("content").value_or("");
    trajectory.messages.push_back(std::move(*message));
  }
  trajectory.table = all->table(system);
  bool answered = false;
  for (const Message& message : trajectory.messages) {
    answered = answered || message.role == "assistant";
    for (const ToolUse& use : message.requests) {
      all->tool(use.name);
      all->tools[trajectory.table - 1].insert(use.name);
    }
  }
  if (answered) all->trajectories.push_back(std::move(trajectory));
  return {};
}

v1::SharedSpanTable table_of(const TauBenchImport& all, uint32_t table) {
  v1::SharedSpanTable spans;
  spans.set_table(table);
  const std::set<std::string>& tools = all.tools[table - 1];
  if (!tools.empty()) {
    v1::Span& schemas = *spans.add_spans();
    schemas.set_role(v1::INST);
    schemas.set_tokens(kSchemaTokens * static_cast<uint32_t>(std::min<size_t>(tools.size(), 10'000)));
    SessionBuilder::mark(&schemas, v1::Span::kTokensFieldNumber, v1::ESTIMATED);
    v1::Extra* why = schemas.add_extras();
    why->set_key("estimate");
    why->set_value_json(fmt::format("\"{} tool schemas that the source leaves out, {} tokens each\"",
                                    tools.size(), kSchemaTokens));
  }
  v1::Span& system = *spans.add_spans();
  system.set_role(v1::INST);
  system.set_tokens(kTemplateTokens + prose_tokens(all.system_chars[table - 1]));
  system.set_chars(static_cast<uint32_t>(std::min(all.system_chars[table - 1], kCharsMax)));
  return spans;
}

class TauConversation {
 public:
  TauConversation(const Trajectory& trajectory, uint64_t number, uint64_t seed, TauBenchImport* all)
      : trajectory_(trajectory),
        dice_(seed, number),
        session_(trajectory.id, "customer-service", 0),
        agent_(&session_, session_.add_agent("main", "main", 0)),
        all_(*all) {}

  v1::Session make(const v1::SharedSpanTable& table) {
    for (int i = 0; i < table.spans_size(); ++i) {
      agent_.history.add(
          {table.table(), static_cast<uint32_t>(i), table.spans(i).tokens(), table.spans(i).tokens()});
    }
    for (size_t i = 0; i < trajectory_.messages.size(); ++i) {
      const Message& message = trajectory_.messages[i];
      if (message.role == "assistant")
        answer(message, i);
      else if (message.role == "tool")
        result(message);
      else if (i > 0 || message.role != "system")
        ask(message, i);
    }
    return session_.take();
  }

 private:
  void ask(const Message& message, uint64_t n) {
    if (asked_) agent_.turn += 1;
    if (asked_) agent_.think_ns = dice_.pick(kUserTime, TauDraw::kUser, n) * 1'000'000;
    asked_ = true;
    agent_.say({.role = v1::USER,
                .tokens = kTemplateTokens + prose_tokens(message.chars),
                .chars = clipped(message.chars),
                .query = true});
  }

  void answer(const Message& message, uint64_t n) {
    std::vector<SpanSpec> output;
    if (message.chars > 0 || message.requests.empty()) {
      output.push_back({.role = v1::ASSISTANT,
                        .tokens = 1 + prose_tokens(message.chars),
                        .chars = clipped(message.chars)});
    }
    const size_t prose = output.size();
    for (const ToolUse& use : message.requests) {
      output.push_back({.role = v1::TOOL_CALL,
                        .tokens = kToolCallTokens + json_tokens(use.chars),
                        .tool = all_.tool(use.name),
                        .chars = clipped(use.chars)});
    }
    std::vector<Piece> made;
    agent_.request(output, &made);
    for (size_t i = 0; i < message.requests.size(); ++i) {
      const int64_t took = dice_.pick(kToolTime, TauDraw::kTool, n, i) * 1'000'000;
      const uint32_t node = agent_.tool(all_.tool(message.requests[i].name), made[prose + i], {}, took);
      open_[message.requests[i].id] = node;
    }
  }

  void result(const Message& message) {
    SpanSpec spec{.role = v1::OBS,
                  .tokens = kTemplateTokens + json_tokens(message.chars),
                  .chars = clipped(message.chars)};
    const auto asked_for = open_.find(message.tool_call_id);
    if (asked_for != open_.end()) spec.tool = session_.node(asked_for->second).tool().tool();
    const Piece piece = agent_.say(spec);
    if (asked_for != open_.end())
      session_.node(asked_for->second).mutable_tool()->set_result_span(1 + piece.index);
  }

  static uint32_t clipped(uint64_t chars) { return static_cast<uint32_t>(std::min(chars, kCharsMax)); }

  const Trajectory& trajectory_;
  SessionDraws dice_;
  SessionBuilder session_;
  AgentThread agent_;
  TauBenchImport& all_;
  std::map<std::string, uint32_t> open_;  // tool_call id -> its node
  bool asked_ = false;
};

v1::TraceHeader header_of(const std::string& path, const TauBenchImport& all, uint64_t seed) {
  v1::TraceHeader header = imported_header("tau-bench", path);
  v1::Tokenizer* tokenizer = header.add_tokenizers();
  tokenizer->set_name("4.9 characters of prose, 2.6 of JSON");
  tokenizer->set_prov(v1::ESTIMATED);
  header.add_models("unknown");
  for (const std::string& tool : all.tool_names) header.add_tool_names(tool);
  header.set_session_arrivals(v1::ARR_NONE);
  header.set_request_arrivals(v1::ARR_NONE);
  header.set_time_resolution_ns(1e6);
  const uint32_t times = add_recipe(&header, "tau-bench-times",
                                    R"({"tool_ms":[1,50],"user_ms":[800,2000,4000,10000]})", seed, "");
  add_policy(&header, "LlmRequest.prompt_tokens", v1::ESTIMATED);
  add_policy(&header, "LlmRequest.output_tokens", v1::ESTIMATED);
  add_policy(&header, "Span.tokens", v1::ESTIMATED);
  add_policy(&header, "Span.role", v1::RECORDED);
  add_policy(&header, "ToolCall.duration_ns", v1::SYNTHESISED, times);
  add_policy(&header, "LlmRequest.think_ns", v1::SYNTHESISED, times);
  return header;
}

}  // namespace

Result<void> import_tau_bench(const std::string& path, const ImportOptions& options, TraceSink* sink) {
  TauBenchImport all;
  const auto wanted = [](const std::string& name) { return name.ends_with(".json"); };
  const auto take = [&](const std::string& name, std::string_view bytes) -> Result<void> {
    const Result<CompactJson> parsed = parse_compact_json(bytes, {});
    if (!parsed) return make_error(name, parsed.error().text());
    if (!parsed->tree.is_array())
      return make_error(name, shown(parsed->tree) + " is no list", "a list of trajectories");
    const std::string stem = name.substr(0, name.find_last_of('.'));
    for (size_t i = 0; i < parsed->tree.size(); ++i) {
      Result<void> good = read_trajectory(parsed->tree[i], fmt::format("{}[{}]", name, i), stem, &all);
      if (!good) return good;
    }
    return {};
  };
  if (Result<void> good = for_each_document(path, wanted, take); !good) return good;
  if (all.trajectories.empty())
    return make_error(path, "no trajectories with an answer in it", "tau-bench result files");
  if (Result<void> good = sink->header(header_of(path, all, options.seed)); !good) return good;
  std::vector<v1::SharedSpanTable> tables;
  for (uint32_t table = 1; table <= all.table_of.size(); ++table) {
    tables.push_back(table_of(all, table));
    if (Result<void> good = sink->shared_spans(tables.back()); !good) return good;
  }
  for (size_t i = 0; i < all.trajectories.size(); ++i) {
    const Trajectory& trajectory = all.trajectories[i];
    const v1::Session session =
        TauConversation(trajectory, i, options.seed, &all).make(tables[trajectory.table - 1]);
    if (Result<void> good = sink->session(session); !good) return good;
  }
  note(options, "token counts are estimated, tool schemas among them; tool and user times are synthesised");
  return sink->done();
}

}  // namespace kvtwin
