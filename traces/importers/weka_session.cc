// Converts a parsed WEKA trace to a session: the graph and the waits. weka_spans.cc makes the spans.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "traces/importers/importers.h"
#include "traces/importers/weka.h"
#include "traces/importers/weka_spans.h"

namespace kvtwin {
namespace {

// A sub-agent starts 0.2-2 s after the request that asks for it. A longer gap is not client overhead but the
// user's time, and belongs to think_ns, where a cap applies.
constexpr int64_t kSpawnDelayMax = 2'000'000'000;

// State of an agent for its next request.
struct AgentState {
  uint32_t index = 0;       // in session.agents
  int last = -1;            // its latest request's node
  int64_t last_end_ns = 0;  // when that ended: recorded, or estimated
  bool last_recorded = false;
  uint32_t turn = 0;
  WekaPrefix prefix;
};

class WekaBuilder {
 public:
  WekaBuilder(const WekaTrace& trace, PrefixSharing sharing, NameTable* models)
      : trace_(trace), sharing_(sharing), models_(models), spans_(&session_, trace.block_tokens) {}

  Result<v1::Session> build() {
    session_.set_id(trace_.id);
    session_.set_workload("coding-agent");
    add_extra(session_.mutable_extras(), "weka", trace_.fields_json);
    AgentState main = add_agent("main", "main", 0, trace_.prefix);
    for (size_t i = 0; i < trace_.items.size(); ++i) {
      const WekaItem& item = trace_.items[i];
      if (item.agent) {
        sub_agent(*item.agent, main);
        continue;
      }
      main_request(*item.request, next_event_ns(i), &main);
    }
    if (!spans_.good()) {
      return make_error(trace_.id, fmt::format("its prompts take more than {} runs of spans", kWekaRunsMax),
                        "cut the session");
    }
    share_weka_prefixes(keyed_, sharing_, trace_, &session_);
    return std::move(session_);
  }

 private:
  struct Join {
    int node;          // the sub-agent's last
    int64_t delay_ns;  // from that node's end to the sub-agent's end
    int64_t end_ns;
  };

  AgentState add_agent(const std::string& name, const std::string& kind, uint32_t parent,
                       const WekaPrefix& prefix) {
    v1::Agent& agent = *session_.add_agents();
    agent.set_name(name);
    agent.set_kind(kind);
    agent.set_parent(parent);
    AgentState state;
    state.index = static_cast<uint32_t>(session_.agents_size() - 1);
    state.prefix = prefix;
    return state;
  }

  // When the next event after item i starts that waits for it; bounds an estimated service time.
  int64_t next_event_ns(size_t i) const {
    for (size_t k = i + 1; k < trace_.items.size(); ++k) {
      const WekaItem& item = trace_.items[k];
      return item.request ? item.request->at_ns : item.agent->start_ns;
    }
    return INT64_MAX;
  }

  void main_request(const WekaRequest& request, int64_t bound_ns, AgentState* main) {
    const AgentState before = *main;
    const int index = add_request(request, bound_ns, "", main);
    v1::Node& node = *session_.mutable_nodes(index);
    // The sub-agents that ran since the last request and that it waits for (trap 2: the recorded think time
    // contains their wall time).
    int64_t joined_ns = before.last_end_ns;
    for (const Join& join : joins_) {
      v1::Dep& dep = *node.add_deps();
      dep.set_node(static_cast<uint32_t>(join.node));
      dep.set_kind(v1::DEP_JOIN);
      dep.set_delay_ns(join.delay_ns);
      joined_ns = std::max(joined_ns, join.end_ns);
    }
    const bool joined = !joins_.empty();
    joins_.clear();
    set_think(request, before, joined ? joined_ns - before.last_end_ns : 0, joined, &node);
  }

  // Sets think_ns and its provenance. `inside_ns`: part of the recorded think time in which sub-agents
  // worked.
  void set_think(const WekaRequest& request, const AgentState& before, int64_t inside_ns, bool joined,
                 v1::Node* node) {
    constexpr uint32_t kThink = v1::LlmRequest::kThinkNsFieldNumber;
    const int64_t recorded = request.think_ns.value_or(0);
    int64_t think = recorded;
    if (before.last < 0) {  // a root is released by start_offset_ns
      think = 0;
      if (recorded != 0) mark(node, kThink, v1::DERIVED);
    } else if (!before.last_recorded || !request.think_ns) {
      // Trap 4: think_time was measured from an earlier event; only the gap is known.
      think = std::max<int64_t>(0, request.at_ns - before.last_end_ns - inside_ns);
      mark(node, kThink, v1::ESTIMATED, kWekaServiceRecipe);
    } else if (joined) {
      think = std::max<int64_t>(0, recorded - inside_ns);
      mark(node, kThink, v1::DERIVED);
    }
    node->mutable_llm()->set_think_ns(think);
    const bool overridden = marked(*node, kThink) != v1::PROV_UNSPECIFIED;
    if (overridden ? request.think_ns.has_value() : !request.think_ns.has_value()) {
      add_extra(node->mutable_extras(), "think_ns", request.think_ns ? fmt::format("{}", recorded) : "null");
    }
  }

  void sub_agent(const WekaAgent& agent, const AgentState& main) {
    AgentState state = add_agent(agent.name, agent.kind, main.index, agent.prefix);
    v1::Agent& made = *session_.mutable_agents(static_cast<int>(state.index));
    add_extra(made.mutable_extras(), "weka", agent.fields_json);
    const int64_t gap =
        main.last < 0 ? agent.start_ns : std::max<int64_t>(0, agent.start_ns - main.last_end_ns);
    if (agent.requests.empty()) {
      opaque_agent(agent, main, gap);
      return;
    }
    for (size_t i = 0; i < agent.requests.size(); ++i) {
      const WekaRequest& request = agent.requests[i];
      const AgentState before = state;
      const int64_t bound = i + 1 < agent.requests.size() ? agent.requests[i + 1].at_ns : INT64_MAX;
      const int index = add_request(request, bound, agent.kind, &state);
      v1::Node& node = *session_.mutable_nodes(index);
      set_think(request, before, 0, false, &node);
      if (before.last < 0) spawn(main, gap, request.at_ns - agent.start_ns, &node);
    }
    if (agent.joined)
      joins_.push_back({state.last, std::max<int64_t>(0, agent.end_ns - state.last_end_ns), agent.end_ns});
  }

  void spawn(const AgentState& main, int64_t gap_ns, int64_t first_ns, v1::Node* node) {
    if (main.last < 0) {  // the session begins with a sub-agent
      node->set_start_offset_ns(gap_ns + first_ns);
      return;
    }
    v1::Dep& dep = *node->add_deps();
    dep.set_node(static_cast<uint32_t>(main.last));
    dep.set_kind(v1::DEP_SPAWN);
    dep.set_delay_ns(std::min(gap_ns, kSpawnDelayMax));
    if (!node->has_llm()) return;
    const int64_t think = gap_ns - dep.delay_ns() + first_ns;
    if (think == 0) return;
    node->mutable_llm()->set_think_ns(think);
    if (marked(*node, v1::LlmRequest::kThinkNsFieldNumber) != v1::PROV_UNSPECIFIED) return;
    mark(node, v1::LlmRequest::kThinkNsFieldNumber, v1::DERIVED);
    if (find_extra(node->extras(), "think_ns") == nullptr) add_extra(node->mutable_extras(), "think_ns", "0");
  }

  void opaque_agent(const WekaAgent& agent, const AgentState& main, int64_t gap_ns) {
    v1::Node& node = *session_.add_nodes();
    node.set_agent(static_cast<uint32_t>(session_.agents_size() - 1));
    v1::OpaqueAgent& opaque = *node.mutable_opaque();
    opaque.set_kind(agent.kind);
    // The part that the spawn delay does not cover belongs to the wall time here, because there is no
    // think_ns.
    const int64_t late = main.last < 0 ? 0 : gap_ns - std::min(gap_ns, kSpawnDelayMax);
    opaque.set_duration_ns(agent.end_ns - agent.start_ns + late);
    opaque.set_recorded_at_ns(agent.start_ns);
    spawn(main, gap_ns, 0, &node);
    if (agent.joined) joins_.push_back({session_.nodes_size() - 1, 0, agent.end_ns});
  }

  int add_request(const WekaRequest& source, int64_t bound_ns, const std::string& family, AgentState* agent) {
    const int index = session_.nodes_size();
    v1::Node& node = *session_.add_nodes();
    node.set_agent(agent->index);
    v1::LlmRequest& request = *node.mutable_llm();
    request.set_model(models_->index(source.model));
    if (agent->last < 0) session_.mutable_agents(static_cast<int>(agent->index))->set_model(request.model());
    request.set_prompt_tokens(source.prompt_tokens);
    request.set_output_tokens(source.output_tokens);
    request.set_streaming(source.type == "s");
    request.set_stop_reason(source.stop);
    request.set_recorded_at_ns(source.at_ns);
    const int64_t fit = std::min(estimated_service_ns(source.prompt_tokens, source.output_tokens),
                                 std::max<int64_t>(0, bound_ns - source.at_ns));
    request.set_recorded_service_ns(source.service_ns.value_or(fit));
    if (!source.service_ns) {
      mark(&node, v1::LlmRequest::kRecordedServiceNsFieldNumber, v1::ESTIMATED, kWekaServiceRecipe);
    }
    if (source.ttft_ns) {
      request.set_recorded_ttft_ns(*source.ttft_ns);
      mark(&node, v1::LlmRequest::kRecordedTtftNsFieldNumber, v1::RECORDED);
    }
    encode_key(source.ids, trace_.scope, request.mutable_prompt_key());
    add_types(source, &node);
    const bool user = !source.has_input("tool_result");
    if (user && agent->last >= 0) ++agent->turn;
    request.set_turn(agent->turn);
    const bool continues = spans_.add(source, keyed_, agent->last, agent->prefix, &request);
    if (agent->last >= 0) {
      v1::Dep& dep = *node.add_deps();
      dep.set_node(static_cast<uint32_t>(agent->last));
      dep.set_kind(continues ? v1::DEP_DATA : v1::DEP_CONTROL);
    } else if (agent->index == 0) {
      node.set_start_offset_ns(source.at_ns);
    }
    keyed_.push_back({index, &source.ids, family, agent->prefix});
    agent->last = index;
    agent->last_end_ns = source.at_ns + request.recorded_service_ns();
    agent->last_recorded = source.service_ns.has_value();
    return index;
  }

  // Input and output types as two bit sets: [4,9] means tool_result in, text and tool_use out.
  static void add_types(const WekaRequest& request, v1::Node* node) {
    const auto encoded = [](const std::vector<std::string>& types) {
      constexpr const char* kTypes[] = {"text", "thinking", "tool_result", "tool_use"};
      int bits = 0;
      size_t found = 0;
      for (int bit = 0; bit < 4; ++bit) {
        if (found < types.size() && types[found] == kTypes[bit]) bits |= 1 << bit, ++found;
      }
      // Lists that are not sorted, or contain other words, are stored unchanged.
      return found == types.size() ? nlohmann::json(bits) : nlohmann::json(types);
    };
    const nlohmann::json both{encoded(request.input_types), encoded(request.output_types)};
    add_extra(node->mutable_extras(), "io",
              both.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
  }

  const WekaTrace& trace_;
  const PrefixSharing sharing_;
  NameTable* const models_;
  v1::Session session_;
  WekaSpans spans_;
  std::vector<WekaKeyedRequest> keyed_;
  std::vector<Join> joins_;
};

}  // namespace

Result<v1::Session> weka_session(const WekaTrace& trace, PrefixSharing sharing, NameTable* models) {
  return WekaBuilder(trace, sharing, models).build();
}

}  // namespace kvtwin
