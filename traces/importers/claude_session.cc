// Converts the records of one log to one session. The log holds messages; prompts are reconstructed from
// instructions (the part of the first recorded prompt that no message accounts for) and all messages.
//
// Token counts of single messages are estimates, but their sums are not: the growth of a prompt is divided
// among its new messages. Local models leave their reasoning out of later prompts; the reading that fits the
// prompt sizes better decides whether a log does.

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <set>

#include "traces/format/session_builder.h"
#include "traces/importers/claude_requests.h"

namespace kvtwin::claude {
namespace {

// A tool whose record precedes the end of its message by more than this was started before that end
// (docs/design/trace-formats.md#agentcgroup), and its time counts from there
// (docs/design/trace-formats.md#importers). Caution: in all 189 AgentCgroup logs no result came before its
// message had ended, and those of early requests came 40 ms (median) after the end, so that client may have
// waited for it.
constexpr int64_t kEarlyNs = 50'000'000;
// Messages in all prompts of a session, each counted as often as it is sent.
constexpr uint64_t kWorkMax = uint64_t{1} << 27;
constexpr size_t kCandidatesMax = 64;
constexpr int kDepthMax = 8;  // nesting of sub-agents

struct Group {  // the records of one agent
  std::vector<const Record*> records;
  std::vector<Request> requests;
  bool built = false;
};

class Building {
 public:
  Building(const Log& log, int64_t origin_ns, Names* models, Names* tools, Counts* counts)
      : session_(log.id, "coding-agent", 0),
        origin_ns_(origin_ns),
        models_(*models),
        tools_(*tools),
        counts_(*counts) {
    split(log);
  }

  Result<v1::Session> run() {
    size_t main = 0;
    while (main < groups_.size() && groups_[main].requests.empty()) ++main;
    if (main == groups_.size()) return v1::Session{};
    const int64_t arrival_ns = groups_[main].records.front()->at_ns;
    session_.session().set_arrival_at_ns(arrival_ns - origin_ns_);
    build(&groups_[main], "main", "main", 0, std::nullopt, 0);
    for (size_t i = 0; i < main_nodes_.size(); ++i) {
      const int64_t before = main_ends_ns_.empty() ? 0 : main_ends_ns_.back();
      main_ends_ns_.push_back(std::max(before, groups_[main].requests[i].end_ns));
    }
    session_.node(0).set_start_offset_ns(groups_[main].requests.front().start_ns - arrival_ns);
    // Sub-agents that no request started: only their time is known.
    for (Group& group : groups_) {
      if (group.built || group.requests.empty()) continue;
      const std::optional<v1::Dep> after = last_before(group.records.front()->at_ns);
      if (after)
        build(&group, "unknown", "unknown", 0, after, 0);
      else
        ++counts_.unattached;
    }
    if (work_ > kWorkMax) {
      return make_error("session " + session_.session().id(), "more messages than a session can be made of",
                        "split the log");
    }
    return session_.take();
  }

 private:
  struct Built {
    uint32_t last_node = 0;
    int64_t end_ns = 0;
  };

  // The main agent's records are group 0; every other group is an agentId, or the descendants of one root.
  void split(const Log& log) {
    std::map<std::string, size_t> group_of;
    std::set<std::string> seen;
    groups_.emplace_back();
    for (const Record& record : log.records) {
      if (!record.uuid.empty() && !seen.insert(record.uuid).second) continue;
      size_t group = 0;
      if (record.sidechain) {
        const std::string key = record.agent.empty() ? record.parent : "agent " + record.agent;
        const auto known = group_of.find(key);
        group = known != group_of.end() ? known->second : groups_.size();
        if (!record.agent.empty()) group_of[key] = group;
        if (group == groups_.size()) groups_.emplace_back();
      }
      if (!record.uuid.empty()) group_of[record.uuid] = group;
      groups_[group].records.push_back(&record);
      for (const Block& block : record.blocks) {
        if (block.kind == Block::Kind::kToolResult) results_[block.tool_id] = {&block, &record};
      }
    }
    for (size_t i = 0; i < groups_.size(); ++i) {
      if (groups_[i].records.empty()) continue;
      groups_[i].requests = requests_of(groups_[i].records);
      if (i > 0) by_prompt_[groups_[i].records.front()->text_hash].push_back(i);
    }
  }

  std::optional<v1::Dep> last_before(int64_t at_ns) const {
    const auto after = std::upper_bound(main_ends_ns_.begin(), main_ends_ns_.end(), at_ns);
    if (after == main_ends_ns_.begin()) return std::nullopt;
    const auto last = static_cast<size_t>(after - main_ends_ns_.begin()) - 1;
    v1::Dep dep;
    dep.set_node(main_nodes_[last]);
    dep.set_kind(v1::DEP_TEMPORAL);
    dep.set_delay_ns(at_ns - main_ends_ns_[last]);
    return dep;
  }

  Built build(Group* group, const std::string& name, const std::string& kind, uint32_t parent,
              const std::optional<v1::Dep>& first_dep, int depth) {
    group->built = true;
    uint32_t model = 0;
    for (const Request& request : group->requests) {
      if (request.failed()) continue;
      model = models_(request.answer.front()->model);
      break;
    }
    AgentThread thread(&session_, session_.add_agent(name, kind, parent, model));
    if (first_dep)
      thread.wait_for(first_dep->node(), first_dep->kind(), first_dep->delay_ns(),
                      first_dep->at_output_token());
    const bool strips = strips_reasoning(group->requests);
    int64_t ready_ns = group->requests.front().start_ns;
    uint64_t instructions = 0;
    for (size_t i = 0; i < group->requests.size(); ++i) {
      const Request& request = group->requests[i];
      if (request.compacted) thread.history.cut(instructions);
      const bool sized = place_inputs(request, i == 0 ? &instructions : nullptr, &thread);
      thread.think_ns = std::max<int64_t>(0, request.start_ns - ready_ns);
      const Request* const next = i + 1 < group->requests.size() ? &group->requests[i + 1] : nullptr;
      ready_ns = std::max(request.end_ns, emit(request, next, strips, sized, &thread, depth));
      if (!first_dep) main_nodes_.push_back(thread.last_request());
      work_ += thread.history.pieces().size();
      if (work_ > kWorkMax) break;
    }
    return {thread.last_request(), group->requests.back().end_ns};
  }

  // Appends the new part of this request's prompt, so that the history has as many tokens as were recorded.
  // False: nothing was recorded, and the size is an estimate.
  bool place_inputs(const Request& request, uint64_t* instructions, AgentThread* thread) {
    const std::vector<PlacedBlock> said = blocks_of(request.inputs);
    const uint64_t estimate = tokens_in(said);
    const bool sized = request.prompt_tokens > 0;
    const uint64_t size =
        sized ? request.prompt_tokens : std::max<uint64_t>(1, thread->history.tokens() + estimate);
    if (instructions != nullptr && size > estimate) {
      const Piece inst = thread->say({.role = v1::INST, .tokens = static_cast<uint32_t>(size - estimate)});
      SessionBuilder::mark(&session_.span(inst), v1::Span::kTokensFieldNumber,
                           sized ? v1::DERIVED : v1::ESTIMATED);
      *instructions = inst.tokens;
    }
    const uint64_t had = thread->history.tokens();
    if (size < had + said.size()) {
      // The prompt shrank, and the log does not record where. The new part counts as estimated; the end is
      // dropped.
      if (size < had) ++counts_.rewrites;
      const uint64_t fresh = std::min(size - (size > 0 && had > 0 ? 1 : 0), estimate);
      thread->history.cut(size - fresh);
    }
    const uint64_t rest = size - thread->history.tokens();
    if (said.empty() && rest > 0) {  // a reminder of the client that is not in the log
      thread->say({.role = v1::ROLE_UNKNOWN, .tokens = static_cast<uint32_t>(rest)});
    }
    const std::vector<uint32_t> fractions = divide(rest, said);
    for (size_t i = 0; i < said.size(); ++i) {
      const bool opens =
          i == 0 || said[i - 1].record != said[i].record;  // a message; one message is one turn
      if (fractions[i] > 0) place(*said[i].block, opens, fractions[i], thread);
    }
    return sized;
  }

  void place(const Block& block, bool opens, uint32_t tokens, AgentThread* thread) {
    SpanSpec spec{.role = v1::USER, .tokens = tokens, .chars = chars_of(block)};
    if (block.kind == Block::Kind::kImage) spec.modality = v1::IMAGE;
    const auto tool = tool_nodes_.find(block.tool_id);
    const bool known = block.kind == Block::Kind::kToolResult && tool != tool_nodes_.end();
    if (block.kind == Block::Kind::kToolResult) spec.role = v1::OBS;
    spec.query = spec.role == v1::USER && block.kind == Block::Kind::kText;
    if (spec.query && opens && !asked_.insert(thread->agent()).second) thread->turn += 1;
    if (known && session_.node(tool->second).has_tool())
      spec.tool = session_.node(tool->second).tool().tool();
    const Piece piece = thread->say(spec);
    if (!known) return;
    v1::Node& node = session_.node(tool->second);
    if (node.has_tool()) node.mutable_tool()->set_result_span(1 + piece.index);
    if (node.has_opaque()) node.mutable_opaque()->set_result_span(1 + piece.index);
  }

  static uint32_t chars_of(const Block& block) {
    return block.kind == Block::Kind::kImage
               ? 0
               : static_cast<uint32_t>(std::min<uint64_t>(block.chars, UINT32_MAX));
  }

  // Adds the request, its spans and its tools. Returns when the last of its tools had ended.
  int64_t emit(const Request& request, const Request* next, bool strips, bool sized, AgentThread* thread,
               int depth) {
    // Text that the client reports in place of an answer is not output and never enters a prompt.
    const std::vector<PlacedBlock> said =
        request.failed() ? std::vector<PlacedBlock>{} : blocks_of(request.answer);
    const bool recorded = request.failed() || output_recorded(request);
    const uint64_t total = request.failed() ? 0
                           : recorded       ? request.output_tokens
                                            : estimated_output(request, next);
    const std::vector<uint32_t> fractions = divide(total, said);
    std::vector<SpanSpec> specs;
    for (size_t i = 0; i < said.size() && fractions[i] > 0; ++i)
      specs.push_back(output_spec(*said[i].block, fractions[i]));
    if (said.empty() && total > 0)
      specs.push_back({.role = v1::ROLE_UNKNOWN, .tokens = static_cast<uint32_t>(total)});
    std::vector<Piece> made;
    const uint32_t node = thread->request(specs, &made);
    for (const Piece& piece : made) {
      if (strips && session_.span(piece).role() == v1::REASONING) thread->history.remove(piece.index);
    }
    describe(request, node, recorded, sized, total);
    int64_t ended_ns = request.end_ns;
    uint64_t out = 0;
    for (size_t i = 0; i < said.size(); ++i) {
      out += fractions[i];
      if (said[i].block->kind != Block::Kind::kToolUse) continue;
      const bool early = request.end_ns - said[i].record->at_ns > kEarlyNs && out > 0 && out < total;
      const int64_t from_ns = early ? said[i].record->at_ns : request.end_ns;
      const uint32_t at_token = early ? static_cast<uint32_t>(out) : 0;
      const uint32_t call_span = i < made.size() ? 1 + made[i].index : 0;
      ended_ns =
          std::max(ended_ns, start_tool(*said[i].block, node, from_ns, at_token, call_span, thread, depth));
    }
    return ended_ns;
  }

  SpanSpec output_spec(const Block& block, uint32_t tokens) {
    SpanSpec spec{.role = v1::ASSISTANT, .tokens = tokens, .chars = chars_of(block)};
    if (block.kind == Block::Kind::kThinking) spec.role = v1::REASONING;
    if (block.kind == Block::Kind::kToolUse) {
      spec.role = v1::TOOL_CALL;
      spec.tool = 1 + tools_(block.tool);
    }
    return spec;
  }

  void describe(const Request& request, uint32_t index, bool recorded, bool sized, uint64_t total) {
    v1::LlmRequest& llm = session_.llm(index);
    const Record& last = *request.answer.back();
    if (!request.failed()) llm.set_model(models_(last.model));
    llm.set_status(request.failed() ? v1::ERROR : v1::OK);
    llm.set_stop_reason(last.stop_reason);
    llm.set_recorded_at_ns(request.start_ns - origin_ns_);
    llm.set_recorded_service_ns(request.end_ns - request.start_ns);
    llm.set_recorded_cache_read_tokens(static_cast<uint32_t>(last.cache_read));
    llm.set_recorded_cache_write_tokens(static_cast<uint32_t>(last.cache_write));
    if (!recorded)
      SessionBuilder::mark(&session_.node(index), v1::LlmRequest::kOutputTokensFieldNumber, v1::ESTIMATED);
    if (!sized)
      SessionBuilder::mark(&session_.node(index), v1::LlmRequest::kPromptTokensFieldNumber, v1::ESTIMATED);
    counts_.estimated += !recorded && total > 0 ? 1 : 0;
    counts_.failed += request.failed() ? 1 : 0;
  }

  // Adds a tool or sub-agent that request `by` started, released at from_ns. Returns when it had ended.
  int64_t start_tool(const Block& block, uint32_t by, int64_t from_ns, uint32_t at_token, uint32_t call_span,
                     AgentThread* thread, int depth) {
    const auto result = results_.find(block.tool_id);
    const Record* const record = result == results_.end() ? nullptr : result->second.record;
    const int64_t end_ns = record == nullptr ? from_ns : std::max(from_ns, record->at_ns);
    const bool delegates = !block.agent_kind.empty() || block.prompt_hash != 0;
    Group* const group = delegates && depth < kDepthMax ? take_group(block, from_ns) : nullptr;
    if (delegates && group == nullptr) return opaque(block, by, from_ns, end_ns, at_token, record, thread);
    std::optional<Built> helper;
    if (group != nullptr) {
      v1::Dep spawn;
      spawn.set_node(by);
      spawn.set_kind(v1::DEP_SPAWN);
      spawn.set_at_output_token(at_token);
      spawn.set_delay_ns(std::max<int64_t>(0, group->requests.front().start_ns - from_ns));
      const std::string name = fmt::format("agent-{}", session_.session().agents_size());
      helper = build(group, name, block.agent_kind, thread->agent(), spawn, depth + 1);
    }
    v1::ToolCall tool;
    tool.set_tool(1 + tools_(block.tool));
    tool.set_call_span(call_span);
    tool.set_recorded_at_ns((helper ? helper->end_ns : from_ns) - origin_ns_);
    tool.set_duration_ns(std::max<int64_t>(0, end_ns - (helper ? helper->end_ns : from_ns)));
    tool.set_status(record == nullptr ? v1::CANCELLED : result->second.block->failed ? v1::ERROR : v1::OK);
    const uint32_t node = session_.add_tool(thread->agent(), tool);
    session_.depend(node, by, v1::DEP_CONTROL, 0, at_token);
    if (helper) session_.depend(node, helper->last_node, v1::DEP_JOIN);
    thread->wait_for(node, v1::DEP_DATA);
    tool_nodes_[block.tool_id] = node;
    return helper ? std::max(end_ns, helper->end_ns) : end_ns;
  }

  int64_t opaque(const Block& block, uint32_t by, int64_t from_ns, int64_t end_ns, uint32_t at_token,
                 const Record* record, AgentThread* thread) {
    v1::OpaqueAgent agent;
    agent.set_kind(block.agent_kind);
    agent.set_duration_ns(end_ns - from_ns);
    agent.set_recorded_at_ns(from_ns - origin_ns_);
    agent.set_status(record == nullptr ? v1::CANCELLED : v1::OK);
    if (record != nullptr) {
      agent.set_total_tokens(record->agent_tokens);
      agent.set_tool_uses(record->agent_tool_uses);
    }
    const uint32_t node = session_.add_opaque(thread->agent(), agent);
    session_.depend(node, by, v1::DEP_CONTROL, 0, at_token);
    thread->wait_for(node, v1::DEP_DATA);
    tool_nodes_[block.tool_id] = node;
    return end_ns;
  }

  // The log of the sub-agent that received this prompt, if it exists and was not used.
  Group* take_group(const Block& block, int64_t from_ns) {
    const auto found = by_prompt_.find(block.prompt_hash);
    if (found == by_prompt_.end()) return nullptr;
    std::deque<size_t>& waiting = found->second;
    while (!waiting.empty() && groups_[waiting.front()].built) waiting.pop_front();
    for (size_t i = 0; i < std::min(waiting.size(), kCandidatesMax); ++i) {
      Group& group = groups_[waiting[i]];
      if (!group.built && !group.requests.empty() && group.requests.front().start_ns >= from_ns - kEarlyNs)
        return &group;
    }
    return nullptr;
  }

  SessionBuilder session_;
  const int64_t origin_ns_;
  Names& models_;
  Names& tools_;
  Counts& counts_;
  std::vector<Group> groups_;
  std::map<uint64_t, std::deque<size_t>> by_prompt_;
  std::map<std::string, PlacedBlock> results_;  // tool_use id -> its result
  std::map<std::string, uint32_t> tool_nodes_;  // tool_use id -> its node
  std::vector<uint32_t> main_nodes_;            // of the main agent's requests
  std::vector<int64_t> main_ends_ns_;           // their ends, ascending
  std::set<uint32_t> asked_;                    // agents that have received a prompt
  uint64_t work_ = 0;
};

}  // namespace

Result<v1::Session> build_session(const Log& log, int64_t origin_ns, Names* models, Names* tools,
                                  Counts* counts) {
  return Building(log, origin_ns, models, tools, counts).run();
}

}  // namespace kvtwin::claude
