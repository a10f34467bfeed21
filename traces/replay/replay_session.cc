// What happens inside sessions: the release rules of replay.h.

#include <algorithm>

#include "traces/replay/replay.h"

namespace kvtwin {

int64_t ReplayClient::recorded_release(const TableSession& session, const TableNode& node,
                                       int64_t start) const {
  if (options_.arrivals == ArrivalMode::kRecorded) return scaled(node.recorded_at_ns, options_.arrival_scale);
  return later(
      start, std::max<int64_t>(0, scaled(node.recorded_at_ns - session.arrival_ns, options_.arrival_scale)));
}

void ReplayClient::start(uint32_t instance, int64_t at, ClientEvents* events) {
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<uint32_t>(live_.size()));
    live_.emplace_back();
  }
  slot_of_[instance] = free_slots_.back();
  free_slots_.pop_back();
  ++report_.sessions_started;
  const TableSession& session = session_of(instance);
  Live& self = live(instance);
  self.nodes.assign(session.node_count, {});
  self.open = session.node_count;
  self.failed = false;
  self.known = false;
  self.last_end = -1;
  self.gaps = self.gap_count = 0;
  for (uint32_t index = 0; index < session.node_count; ++index) {
    const TableNode& node = table_.nodes[session.node_first + index];
    NodeState& state = self.nodes[index];
    state.waiting = node.deps;
    state.last = at;
    state.gate = at;
    const bool recorded = options_.mode != ReplayMode::kClosedLoop && node.kind == NodeKind::kRequest;
    if (recorded) state.gate = recorded_release(session, node, at);
    if (recorded && options_.mode == ReplayMode::kOpenLoop) {
      state.waiting = node.deps_data;
    } else if (state.waiting != 0) {
      continue;
    }
    state.phase = Phase::kDue;
    const int64_t offset = options_.mode == ReplayMode::kClosedLoop ? node.start_offset_ns : 0;
    push({recorded ? state.gate : later(at, offset), instance, index, DueKind::kRelease});
  }
  if (self.open == 0) close(instance, at, events);
}

void ReplayClient::release(const Due& due, ClientEvents* events) {
  const TableNode& node = node_of(due.instance, due.node);
  NodeState& state = live(due.instance).nodes[due.node];
  if (node.kind == NodeKind::kRequest) {
    if (state.waiting != 0 && state.attempts == 0) ++report_.causality_violations;
    const Duration front = front_end(node);
    if (front.ns == 0) return send(due, due.at, events);
    state.phase = Phase::kDue;
    return push({later(due.at, front.ns), due.instance, due.node, DueKind::kArrive});
  }
  state.phase = Phase::kRunning;
  int64_t duration = 0;
  if (options_.mode == ReplayMode::kClosedLoop) {
    duration = scaled(node.wait_ns, options_.tool_scale);
    report_.wait_ns.add(node.wait_provenance, static_cast<uint64_t>(duration));
    tools_.push_back({due.instance, due.node, Instant{due.at}, Instant{later(due.at, duration)}});
  }
  push({later(due.at, duration), due.instance, due.node, DueKind::kComplete});
}

int64_t ReplayClient::release_at(const TableNode& node, const NodeState& state) {
  if (options_.mode != ReplayMode::kClosedLoop) return std::max(state.gate, state.last);
  int64_t think = 0;
  if (node.kind == NodeKind::kRequest) {
    think = std::min(scaled(node.wait_ns, options_.think_scale), options_.think_cap.ns);
  }
  int64_t at = std::max(later(state.gate, think), state.last);
  if (cap_reaches_every_gap() && at - state.last > options_.think_cap.ns)
    at = state.last + options_.think_cap.ns;
  const int64_t gap = at - state.last;
  report_.wait_ns.add(node.wait_provenance, static_cast<uint64_t>(std::min(think, gap)));
  report_.wait_ns.add(table_.delay_provenance, static_cast<uint64_t>(gap - std::min(think, gap)));
  return at;
}

// The dependency of `edge` was satisfied at `at`.
void ReplayClient::satisfy(uint32_t instance, const TableEdge& edge, int64_t at) {
  const TableSession& session = session_of(instance);
  if (edge.node >= session.node_count) return;  // dropped by a cut
  const TableNode& node = table_.nodes[session.node_first + edge.node];
  NodeState& state = live(instance).nodes[edge.node];
  const bool open_request = options_.mode == ReplayMode::kOpenLoop && node.kind == NodeKind::kRequest;
  if (open_request) {
    // Its release is fixed; only count whether it was too early.
    if (edge.data && state.waiting > 0) --state.waiting;
    return;
  }
  if (state.phase != Phase::kWaiting) return;
  const int64_t delay =
      options_.mode == ReplayMode::kClosedLoop ? scaled(edge.delay_ns, options_.delay_scale) : 0;
  // The first dependency replaces the session start, so that a negative delay takes effect.
  const bool first = state.waiting == node.deps && options_.mode == ReplayMode::kClosedLoop;
  state.gate = first ? later(at, delay) : std::max(state.gate, later(at, delay));
  state.last = std::max(state.last, at);
  if (--state.waiting > 0) return;
  state.phase = Phase::kDue;
  push({release_at(node, state), instance, edge.node, DueKind::kRelease});
}

void ReplayClient::complete(uint32_t instance, uint32_t node, int64_t at, ClientEvents* events) {
  const TableNode& row = node_of(instance, node);
  NodeState& state = live(instance).nodes[node];
  state.phase = Phase::kOver;
  const uint32_t emitted = state.emitted;
  for (uint32_t i = 0; i < row.edge_count; ++i) {
    const TableEdge& edge = table_.edges[row.edge_first + i];
    if (edge.at_token == 0 || edge.at_token > emitted) satisfy(instance, edge, at);
  }
  if (--live(instance).open == 0) close(instance, at, events);
}

void ReplayClient::close(uint32_t instance, int64_t at, ClientEvents* events) {
  ++report_.sessions_ended;
  // The engines do not know a session that never sent a request.
  if (live(instance).known)
    events->push_back(SessionHint{SessionId{instance}, SessionHint::Kind::kSessionEnds, {}});
  free_slots_.push_back(slot_of_[instance]);
  slot_of_[instance] = UINT32_MAX;
  arrivals_.session_ended(Instant{at});
}

// The node ends without an answer, and so do all nodes that depend on it, directly or not.
void ReplayClient::fail(uint32_t instance, uint32_t node, int64_t at, ClientEvents* events) {
  Live& self = live(instance);
  const TableSession& session = session_of(instance);
  if (!self.failed) ++report_.sessions_failed;
  self.failed = true;
  self.nodes[node].phase = Phase::kOver;
  --self.open;
  doomed_.assign(1, node);
  while (!doomed_.empty()) {
    const TableNode& row = table_.nodes[session.node_first + doomed_.back()];
    doomed_.pop_back();
    for (uint32_t i = 0; i < row.edge_count; ++i) {
      const uint32_t next = table_.edges[row.edge_first + i].node;
      // In the open loop requests wait for nothing (they are kDue): they are sent, and count as violations.
      if (next >= session.node_count || self.nodes[next].phase != Phase::kWaiting) continue;
      self.nodes[next].phase = Phase::kOver;
      --self.open;
      report_.requests_cancelled += table_.nodes[session.node_first + next].kind == NodeKind::kRequest;
      doomed_.push_back(next);
    }
  }
  if (self.open == 0) close(instance, at, events);
}

}  // namespace kvtwin
