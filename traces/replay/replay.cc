#include "traces/replay/replay.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/prng.h"

namespace kvtwin {
namespace {

constexpr uint64_t kBackoffField = 2;  // of draws; replay_arrivals.cc has the other
constexpr uint64_t kPrivateKind =
    0xf;  // kind of a space; the others are RunScope, below 8 (identity.h, kPrivateSpace)

}  // namespace

ReplayClient::ReplayClient(ReplayTable table, const ReplayOptions& options)
    : table_(std::move(table)), options_(options), arrivals_(table_, options) {
  KVT_CHECK(options_.mode != ReplayMode::kAuto);
  const size_t instances = table_.sessions.size() * options_.replicas;
  slot_of_.assign(instances, UINT32_MAX);
  report_.sessions_total = instances;
  for (const TableSession& session : table_.sessions) {
    const auto begin = table_.nodes.begin() + session.node_first;
    report_.requests_total +=
        static_cast<uint64_t>(std::count_if(begin, begin + session.node_count, [](const TableNode& node) {
          return node.kind == NodeKind::kRequest;
        }));
  }
  report_.requests_total *= options_.replicas;
}

const TableSession& ReplayClient::session_of(uint32_t instance) const {
  return table_.sessions[instance % table_.sessions.size()];
}

const TableNode& ReplayClient::node_of(uint32_t instance, uint32_t node) const {
  return table_.nodes[session_of(instance).node_first + node];
}

Instant ReplayClient::wake_at() const {
  const Instant arrival = arrivals_.next_at();
  return due_.empty() ? arrival : std::min(arrival, Instant{due_.front().at});
}

void ReplayClient::push(Due due) {
  due_.push_back(due);
  std::push_heap(due_.begin(), due_.end(), std::greater<>());
}

// Events that were due before `now` come first, so that a late wake() changes no order.
void ReplayClient::begin_answer(Instant now, ClientEvents* events) {
  answer_begin_ = events->size();
  runs_.clear();
  run_counts_.clear();
  tags_.clear();
  drain(Instant{now.ns - 1}, events);
}

// Runs were collected in one vector that may have moved, so the spans are set only now.
void ReplayClient::end_answer(ClientEvents* events) {
  size_t next = 0;
  const UnitRun* at = runs_.data();
  for (size_t i = answer_begin_; i < events->size(); ++i) {
    auto* ready = std::get_if<RequestReady>(&(*events)[i]);
    if (ready == nullptr) continue;
    ready->identity = {at, run_counts_[next]};
    at += run_counts_[next++];
  }
}

void ReplayClient::wake(Instant now, ClientEvents* events) {
  begin_answer(now, events);
  drain(now, events);
  end_answer(events);
}

void ReplayClient::drain(Instant now, ClientEvents* events) {
  while (wake_at() <= now) {
    const Instant arrival = arrivals_.next_at();
    if (due_.empty() || arrival.ns <= due_.front().at) {
      start(arrivals_.take(), arrival.ns, events);
      continue;
    }
    std::pop_heap(due_.begin(), due_.end(), std::greater<>());
    const Due due = due_.back();
    due_.pop_back();
    if (due.kind == DueKind::kRelease) {
      release(due, events);
    } else if (due.kind == DueKind::kArrive) {
      send(due, due.at - front_end(node_of(due.instance, due.node)).ns, events);
    } else {
      complete(due.instance, due.node, due.at, events);
    }
  }
}

uint64_t ReplayClient::space(RunScope scope, uint32_t instance) const {
  const auto sessions = static_cast<uint32_t>(table_.sessions.size());
  const uint64_t kind = static_cast<uint64_t>(scope) << 60;
  const uint64_t replica = uint64_t{instance / sessions} << 32;
  switch (scope) {
    case RunScope::kSession:
    case RunScope::kSessionTail:
      return kind | replica | instance % sessions;
    case RunScope::kDataset:
    case RunScope::kDatasetTail:
    case RunScope::kChainReplica:
      return kind | replica;
    case RunScope::kGlobal:
    case RunScope::kGlobalTail:
    case RunScope::kChainGlobal:
      return kind;
  }
  return kind;
}

void ReplayClient::send(const Due& due, int64_t released, ClientEvents* events) {
  const TableNode& node = node_of(due.instance, due.node);
  Live& self = live(due.instance);
  self.known = true;
  NodeState& state = self.nodes[due.node];
  state.phase = Phase::kRunning;
  state.emitted = 0;
  const auto id = static_cast<uint32_t>(requests_.size());
  requests_.push_back({released, due.instance, due.node, state.attempts});
  ++report_.requests_sent;
  report_.prompt_tokens.add(node.prompt_provenance, node.prompt_tokens);
  report_.output_tokens.add(node.output_provenance, node.output_tokens);

  const size_t begin = runs_.size();
  uint32_t known = 0;
  if (options_.hints && self.last_end >= 0) {
    self.gaps += released - self.last_end;
    ++self.gap_count;
    self.last_end = -1;
  }
  for (uint32_t i = 0; i < node.run_count; ++i) {
    const TableRun& run = table_.runs[node.run_first + i];
    runs_.push_back({space(run.scope, due.instance), run.first, run.count});
    known += run.count;
  }
  const uint32_t units = (node.prompt_tokens + node.output_tokens) / table_.unit_tokens;
  if (known < units) runs_.push_back({kPrivateKind << 60 | id, known, units - known});
  run_counts_.push_back(static_cast<uint32_t>(runs_.size() - begin));

  RequestReady ready;
  ready.request = RequestId{id};
  ready.session = SessionId{due.instance};
  ready.index = node.index;
  ready.prompt_tokens = node.prompt_tokens;
  ready.output_tokens = node.output_tokens;
  ready.roles = {table_.roles.data() + node.role_first, node.role_count};
  ready.turn = node.turn;
  ready.spans = node.spans;
  if (tag_source_ != nullptr) {
    const auto sessions = static_cast<uint32_t>(table_.sessions.size());
    const PromptTags& tags = tags_.emplace_back(tag_source_->tags(due.instance % sessions, due.node));
    ready.roles = tags.roles, ready.turn = tags.turn, ready.spans = tags.spans;
  }
  ready.triggers = {table_.triggers.data() + node.trigger_first, node.trigger_count};
  events->push_back(ready);
}

void ReplayClient::tokens_emitted(Instant now, RequestId request, uint32_t tokens, ClientEvents* events) {
  KVT_CHECK(raw(request) < requests_.size());
  const SentRequest sent = requests_[raw(request)];
  KVT_CHECK(slot_of_[sent.instance] != UINT32_MAX);
  begin_answer(now, events);  // may move live_
  const TableNode& row = node_of(sent.instance, sent.node);
  NodeState& state = live(sent.instance).nodes[sent.node];
  KVT_CHECK(state.phase == Phase::kRunning);
  const uint32_t before = state.emitted;
  state.emitted = std::max(before, tokens);
  for (uint32_t i = 0; i < row.edge_count; ++i) {
    const TableEdge& edge = table_.edges[row.edge_first + i];
    if (edge.at_token > before && edge.at_token <= tokens) satisfy(sent.instance, edge, now.ns);
  }
  if (row.abort_after != 0 && row.abort_after < row.output_tokens && tokens >= row.abort_after &&
      !state.aborted) {
    state.aborted = true;
    events->push_back(RequestCancelled{request});
  }
  drain(now, events);
  end_answer(events);
}

void ReplayClient::request_finished(Instant now, RequestId request, uint32_t, bool cancelled,
                                    ClientEvents* events) {
  KVT_CHECK(raw(request) < requests_.size());
  const SentRequest sent = requests_[raw(request)];
  KVT_CHECK(slot_of_[sent.instance] != UINT32_MAX);
  KVT_CHECK(live(sent.instance).nodes[sent.node].phase == Phase::kRunning);
  begin_answer(now, events);
  ++(cancelled ? report_.requests_aborted : report_.requests_finished);
  if (options_.hints) note_end(sent.instance, now.ns);
  complete(sent.instance, sent.node, now.ns, events);
  if (options_.hints) say_what_follows(sent, events);
  drain(now, events);
  end_answer(events);
}

void ReplayClient::note_end(uint32_t instance, int64_t at) { live(instance).last_end = at; }

// A client knows that a session will continue, which tool it runs now, and how long its pauses were so far,
// but not how long the next one will be.
void ReplayClient::say_what_follows(const SentRequest& sent, ClientEvents* events) {
  const uint32_t instance = sent.instance;
  if (slot_of_[instance] == UINT32_MAX) return;  // that was the last request, and the end was announced
  const Live& self = live(instance);
  const int64_t gap = self.gap_count > 0 ? std::max<int64_t>(0, self.gaps / self.gap_count) : 0;
  events->push_back(
      SessionHint{SessionId{instance}, SessionHint::Kind::kNextRequestExpected, {gap}, tool_after(sent)});
}

// The first tool that waits for the request.
uint32_t ReplayClient::tool_after(const SentRequest& sent) const {
  const TableNode& row = node_of(sent.instance, sent.node);
  for (uint32_t i = 0; i < row.edge_count; ++i) {
    const TableEdge& edge = table_.edges[row.edge_first + i];
    if (edge.node >= session_of(sent.instance).node_count) continue;  // dropped by a cut
    const TableNode& next = node_of(sent.instance, edge.node);
    if (next.kind == NodeKind::kTool) return next.tool;
  }
  return 0;
}

void ReplayClient::request_rejected(Instant now, RequestId request, ClientEvents* events) {
  KVT_CHECK(raw(request) < requests_.size());
  const SentRequest sent = requests_[raw(request)];
  KVT_CHECK(slot_of_[sent.instance] != UINT32_MAX);
  begin_answer(now, events);  // may move live_
  NodeState& state = live(sent.instance).nodes[sent.node];
  KVT_CHECK(state.phase == Phase::kRunning);
  ++report_.requests_rejected;
  if (options_.on_reject == RejectPolicy::kSkipRequest) {
    complete(sent.instance, sent.node, now.ns, events);
  } else if (options_.on_reject == RejectPolicy::kRetry && state.attempts < options_.retries_max) {
    ++report_.requests_retried;
    const int64_t most = options_.retry_backoff.ns << state.attempts;  // below 2^57 ns: see validate()
    ++state.attempts;
    const uint64_t word = draw({options_.seed, kBackoffField, sent.instance, sent.node, state.attempts});
    const auto wait = most - static_cast<int64_t>(word % static_cast<uint64_t>(most / 2 + 1));
    state.phase = Phase::kDue;
    push({later(now.ns, wait), sent.instance, sent.node, DueKind::kRelease});
  } else {
    fail(sent.instance, sent.node, now.ns, events);
  }
  drain(now, events);
  end_answer(events);
}

ReplayRequestInfo ReplayClient::request_info(RequestId request) const {
  const SentRequest& sent = requests_[raw(request)];
  const TableNode& node = node_of(sent.instance, sent.node);
  const auto sessions = static_cast<uint32_t>(table_.sessions.size());
  ReplayRequestInfo info;
  info.session = SessionId{sent.instance};
  info.session_index = sent.instance % sessions;
  info.replica = sent.instance / sessions;
  info.node = sent.node;
  info.agent = node.agent;
  info.model = node.model;
  info.turn = node.turn;
  info.attempt = sent.attempt;
  info.prompt_tokens = node.prompt_tokens;
  info.output_tokens = node.output_tokens;
  info.ready = Instant{sent.ready};
  info.recorded_at = Instant{node.recorded_at_ns};
  info.recorded_service = Duration{node.recorded_service_ns};
  info.recorded_ttft = Duration{node.recorded_ttft_ns};
  info.session_id = session_of(sent.instance).id;
  return info;
}

}  // namespace kvtwin
