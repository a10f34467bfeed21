#include "traces/inspect/cut.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "traces/importers/importers.h"

namespace kvtwin {
namespace {

// When a node ended according to the recording; -1: unknown.
int64_t recorded_end(const v1::Node& node) {
  if (node.has_llm() && marked(node, v1::LlmRequest::kRecordedAtNsFieldNumber) != v1::UNKNOWN) {
    return node.llm().recorded_at_ns() + node.llm().recorded_service_ns();
  }
  if (node.has_opaque()) return node.opaque().recorded_at_ns() + node.opaque().duration_ns();
  return -1;
}

// Drops spans at the end that no run refers to; the others keep their indices.
void trim_spans(v1::Session* session) {
  uint32_t used = 0;
  for (const v1::Node& node : session->nodes()) {
    if (node.has_tool()) used = std::max({used, node.tool().call_span(), node.tool().result_span()});
    if (node.has_opaque()) used = std::max(used, node.opaque().result_span());
    for (const auto* const runs : {&node.llm().prompt(), &node.llm().output()}) {
      for (const v1::SpanRun& run : *runs) {
        if (run.table() == 0) used = std::max(used, run.first() + run.count());
      }
    }
  }
  const int unused = session->spans_size() - static_cast<int>(used);
  if (unused > 0) session->mutable_spans()->DeleteSubrange(static_cast<int>(used), unused);
}

// The nodes that are connected with the main agent's first one by dependencies in either direction.
std::vector<bool> connected_with_head(const v1::Session& session) {
  const auto count = static_cast<size_t>(session.nodes_size());
  std::vector<std::vector<size_t>> next(count);
  std::vector<bool> reached(count);
  std::vector<size_t> open;
  for (size_t i = count; i-- > 0;) {
    const v1::Node& node = session.nodes(static_cast<int>(i));
    for (const v1::Dep& dep : node.deps()) next[i].push_back(dep.node()), next[dep.node()].push_back(i);
    if (node.agent() == 0) open = {i};
  }
  if (open.empty() && count > 0) open = {0};
  while (!open.empty()) {
    const size_t at = open.back();
    open.pop_back();
    if (reached[at]) continue;
    reached[at] = true;
    open.insert(open.end(), next[at].begin(), next[at].end());
  }
  return reached;
}

}  // namespace

Result<void> TraceCut::header(const v1::TraceHeader& header) {
  header_ = header;
  v1::TraceHeader out = header;
  add_extra(
      out.mutable_extras(), "cut",
      fmt::format(
          R"({{"window_tokens":{},"head_requests_min":{},"sessions_max":{},"requests_max":{},"until_ns":{},)"
          R"("opaque_sub_agents":{}}})",
          options_.window_tokens, options_.head_requests_min, options_.sessions_max, options_.requests_max,
          options_.until_ns, options_.opaque_sub_agents));
  return next_.header(out);
}

bool TraceCut::within(const v1::Node& node, uint64_t requests_before) const {
  if (!node.has_llm()) return true;
  const v1::LlmRequest& request = node.llm();
  const uint64_t tokens = uint64_t{request.prompt_tokens()} + request.output_tokens();
  if (options_.window_tokens != 0 && tokens > options_.window_tokens) return false;
  if (options_.requests_max != 0 && requests_before >= options_.requests_max) return false;
  return options_.until_ns == 0 || header_.request_arrivals() == v1::ARR_NONE ||
         request.recorded_at_ns() < options_.until_ns;
}

// A node is retained with its dependencies, except joins: see keep_nodes().
std::vector<bool> TraceCut::choose(const v1::Session& session) const {
  std::vector<bool> keep(static_cast<size_t>(session.nodes_size()));
  uint64_t requests = requests_;
  bool main_open = true;
  for (int i = 0; i < session.nodes_size(); ++i) {
    const v1::Node& node = session.nodes(i);
    bool stays = within(node, requests);
    for (const v1::Dep& dep : node.deps()) stays = stays && (dep.kind() == v1::DEP_JOIN || keep[dep.node()]);
    // A node with only joins would be disconnected.
    const bool only_joins = std::all_of(node.deps().begin(), node.deps().end(),
                                        [](const v1::Dep& dep) { return dep.kind() == v1::DEP_JOIN; });
    if (only_joins) {
      for (const v1::Dep& dep : node.deps()) stays = stays && keep[dep.node()];
    }
    if (node.agent() == 0) stays = main_open = main_open && stays;
    keep[static_cast<size_t>(i)] = stays;
    requests += stays && node.has_llm();
  }
  return keep;
}

Result<void> TraceCut::session(const v1::Session& session) {
  if (options_.sessions_max != 0 && sessions_ >= options_.sessions_max) return {};
  if (options_.requests_max != 0 && requests_ >= options_.requests_max) return {};
  const bool arrives = header_.session_arrivals() != v1::ARR_NONE;
  if (options_.until_ns != 0 && arrives && session.arrival_at_ns() >= options_.until_ns) return {};
  const v1::Session whole = options_.opaque_sub_agents ? opaque_sub_agents(session) : session;
  v1::Session cut = keep_nodes(whole, choose(whole));
  // Nodes that only a dropped node connected with the head are dropped too: a session is one graph.
  const std::vector<bool> connected = connected_with_head(cut);
  if (std::find(connected.begin(), connected.end(), false) != connected.end())
    cut = keep_nodes(cut, connected);
  uint64_t head = 0, requests = 0;
  for (const v1::Node& node : cut.nodes()) {
    requests += node.has_llm();
    head += node.has_llm() && node.agent() == 0;
  }
  if (requests == 0 || head < options_.head_requests_min) return {};
  ++sessions_;
  requests_ += requests;
  return next_.session(cut);
}

v1::Session keep_nodes(const v1::Session& session, const std::vector<bool>& keep) {
  v1::Session out = session;
  out.clear_nodes();
  std::vector<uint32_t> number(keep.size());
  std::map<uint32_t, uint32_t> last_retained;  // agent -> its last retained node, by its old index
  for (int i = 0; i < session.nodes_size(); ++i) {
    if (!keep[static_cast<size_t>(i)]) continue;
    const v1::Node& node = session.nodes(i);
    number[static_cast<size_t>(i)] = static_cast<uint32_t>(out.nodes_size());
    v1::Node& copy = *out.add_nodes() = node;
    copy.clear_deps();
    for (const v1::Dep& dep : node.deps()) {
      v1::Dep made = dep;
      if (!keep[dep.node()]) {
        // A join with a sub-agent that was cut short: from its last retained request, or else from another
        // retained dependency, with the same duration.
        const v1::Node& dropped = session.nodes(static_cast<int>(dep.node()));
        const auto left = last_retained.find(dropped.agent());
        if (left == last_retained.end()) continue;
        const v1::Node& anchor = session.nodes(static_cast<int>(left->second));
        const int64_t from = recorded_end(anchor), to = recorded_end(dropped);
        if (from >= 0 && to > from) made.set_delay_ns(dep.delay_ns() + (to - from));
        made.set_node(left->second);
        made.set_at_output_token(0);
      }
      made.set_node(number[made.node()]);
      *copy.add_deps() = made;
    }
    last_retained[node.agent()] = static_cast<uint32_t>(i);
  }
  trim_spans(&out);
  return out;
}

v1::Session opaque_sub_agents(const v1::Session& session) {
  v1::Session out = session;
  std::map<uint32_t, int> stands_for;  // agent -> its first node, which becomes the opaque one
  std::vector<bool> keep(static_cast<size_t>(session.nodes_size()), true);
  for (int i = 0; i < session.nodes_size(); ++i) {
    const v1::Node& node = session.nodes(i);
    if (node.agent() == 0) continue;
    const auto [it, first] = stands_for.emplace(node.agent(), i);
    v1::Node& stand_in = *out.mutable_nodes(it->second);
    if (first) {
      if (node.has_opaque()) continue;
      const int64_t start = node.has_llm() ? node.llm().recorded_at_ns() : 0;
      // Waits of the first request before the agent's start move to the spawn, which the opaque node keeps.
      const int64_t think = node.has_llm() ? node.llm().think_ns() : 0;
      if (stand_in.deps_size() > 0)
        stand_in.mutable_deps(0)->set_delay_ns(stand_in.deps(0).delay_ns() + think);
      stand_in.clear_prov();
      stand_in.clear_extras();
      stand_in.mutable_opaque()->set_kind(session.agents(static_cast<int>(node.agent())).kind());
      stand_in.mutable_opaque()->set_recorded_at_ns(start);
    } else {
      keep[static_cast<size_t>(i)] = false;
    }
    v1::OpaqueAgent& opaque = *stand_in.mutable_opaque();
    opaque.set_duration_ns(std::max(opaque.duration_ns(), recorded_end(node) - opaque.recorded_at_ns()));
  }
  // Joins move to the opaque node; their delays count from the agent's end, which is now its end.
  for (v1::Node& node : *out.mutable_nodes()) {
    for (v1::Dep& dep : *node.mutable_deps()) {
      const auto agent = stands_for.find(session.nodes(static_cast<int>(dep.node())).agent());
      if (agent != stands_for.end() && dep.kind() == v1::DEP_JOIN)
        dep.set_node(static_cast<uint32_t>(agent->second));
    }
  }
  return keep_nodes(out, keep);
}

}  // namespace kvtwin
