#include "scenarios/observe/observe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <queue>

#include "scenarios/observe/prompt_ids.h"

namespace kvtwin {
namespace {

constexpr int kPollMs = 100;

struct Due {
  int64_t at_ns = 0;
  uint32_t session = 0, node = 0;
  bool ends = false;  // a tool ends; else the node is released
  friend bool operator>(const Due& a, const Due& b) {
    return std::tie(a.at_ns, a.session, a.node) > std::tie(b.at_ns, b.session, b.node);
  }
};

uint64_t sessions_used(const ObservedTrace& trace, const ObserveOptions& options) {
  const uint64_t count = trace.sessions.size();
  return options.sessions_max > 0 ? std::min(count, options.sessions_max) : count;
}

int64_t arrival_of(const v1::Session& session, const ObserveOptions& options) {
  return static_cast<int64_t>(static_cast<double>(session.arrival_at_ns()) * options.arrival_scale);
}

int64_t think_of(const v1::Node& node, const ObserveOptions& options) {
  return node.has_llm() ? std::min(node.llm().think_ns(), options.think_cap_ns) : 0;
}

int64_t duration_of(const v1::Node& node) {
  return node.has_tool() ? node.tool().duration_ns() : node.has_llm() ? 0 : node.opaque().duration_ns();
}

struct NodeState {
  uint32_t waits_for = 0;
  int64_t ready_ns = 0;
  std::vector<uint32_t> children;
  bool skipped = false;
};

class Driver {
 public:
  Driver(const ObservedTrace& trace, const ObserveOptions& options, HttpRequests* http)
      : trace_(trace), options_(options), http_(*http) {
    ids_.header(trace.head);
    for (const v1::SharedSpanTable& table : trace.tables) ids_.shared_spans(table);
  }

  Observation run(const ObserveProgress& progress) {
    origin_ = http_.now_ns();
    start_sessions();
    while (!due_.empty() || in_flight_ > 0) {
      while (!due_.empty() && due_.top().at_ns <= now()) {
        const Due next = due_.top();
        due_.pop();
        next.ends ? finish(next.session, next.node, next.at_ns) : release(next);
      }
      int64_t wait_ms = kPollMs;
      if (!due_.empty()) {
        const double ms = static_cast<double>(due_.top().at_ns - now()) / 1e6 / options_.speed;
        wait_ms = static_cast<int64_t>(std::clamp<double>(ms, 0, kPollMs));
      }
      for (const HttpReply& reply : http_.poll(static_cast<int>(wait_ms))) take(reply);
      if (progress && !progress(out_.sent - in_flight_, in_flight_)) {
        stop();
        break;
      }
    }
    return std::move(out_);
  }

 private:
  // The trace's time, of a time of http_.
  int64_t trace_ns(int64_t http_ns) const {
    return std::llround(static_cast<double>(http_ns - origin_) * options_.speed);
  }
  int64_t now() const { return trace_ns(http_.now_ns()); }

  void start_sessions() {
    const uint64_t count = sessions_used(trace_, options_);
    states_.resize(count);
    for (uint32_t s = 0; s < count; ++s) {
      const v1::Session& session = trace_.sessions[s];
      states_[s].resize(static_cast<size_t>(session.nodes_size()));
      const int64_t arrival = arrival_of(session, options_);
      for (uint32_t n = 0; n < states_[s].size(); ++n) {
        const v1::Node& node = session.nodes(static_cast<int>(n));
        requests_all_ += node.has_llm();
        states_[s][n].waits_for = static_cast<uint32_t>(node.deps_size());
        for (const v1::Dep& dep : node.deps()) states_[s][dep.node()].children.push_back(n);
        if (node.deps().empty()) due_.push({arrival + node.start_offset_ns(), s, n, false});
      }
    }
  }

  void release(const Due& due) {
    const v1::Node& node = trace_.sessions[due.session].nodes(static_cast<int>(due.node));
    if (node.has_llm()) return send(due.session, due.node, node.llm());
    due_.push({due.at_ns + duration_of(node), due.session, due.node, true});
  }

  void send(uint32_t session, uint32_t node, const v1::LlmRequest& request) {
    const std::vector<uint32_t> ids = ids_.of(trace_.sessions[session], session, request, options_.seed);
    nlohmann::ordered_json body;
    body["model"] = options_.model;
    if (options_.chat)
      body["messages"] = {{{"role", "user"}, {"content", words_of(ids)}}};
    else
      body["prompt"] = ids;
    body["max_tokens"] = std::max(1u, request.output_tokens());
    body["temperature"] = 0;
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
    if (options_.ignore_eos) body["ignore_eos"] = true;
    const uint64_t id = out_.sent++;
    places_.push_back({session, node});
    ++in_flight_;
    http_.send(id, options_.chat ? "chat/completions" : "completions", body.dump(),
               trace_.sessions[session].id());
  }

  void take(const HttpReply& reply) {
    --in_flight_;
    const auto [session, node] = places_[reply.id];
    const v1::LlmRequest& request = trace_.sessions[session].nodes(static_cast<int>(node)).llm();
    const auto seconds = [this](int64_t ns) { return static_cast<double>(trace_ns(ns)) / 1e9; };
    MeasuredRequest measured;
    measured.session = trace_.sessions[session].id();
    measured.node = node;
    measured.reused = reply.cached_tokens;
    measured.engine = reply.engine;
    measured.prompt = reply.prompt_tokens.value_or(request.prompt_tokens());
    measured.output = reply.output_tokens.value_or(reply.chunks);
    measured.begin_s = seconds(reply.sent_ns);
    measured.finished = reply.error.empty();
    measured.first_s = reply.chunks > 0 ? seconds(reply.first_token_ns) : seconds(reply.end_ns);
    measured.end_s = reply.chunks > 0 ? seconds(reply.last_token_ns) : seconds(reply.end_ns);
    out_.prompts_off += measured.finished && measured.prompt != request.prompt_tokens();
    requests_.emplace(reply.id, std::move(measured));
    flush();
    if (reply.error.empty()) return finish(session, node, trace_ns(reply.end_ns));
    ++out_.failed;
    ++out_.errors[reply.error];
    skip(session, node);
  }

  void stop() {
    http_.drop_all();
    out_.stopped = true;
    out_.dropped = in_flight_;
    out_.left_out = requests_all_ - out_.sent - out_.not_sent;
    for (auto& [id, measured] : requests_) out_.run.requests.push_back(std::move(measured));
  }

  // Requests are listed in the order of sending.
  void flush() {
    for (auto it = requests_.begin(); it != requests_.end() && it->first == out_.run.requests.size();)
      out_.run.requests.push_back(std::move(it->second)), it = requests_.erase(it);
  }

  void finish(uint32_t session, uint32_t node, int64_t at_ns) {
    for (const uint32_t child : states_[session][node].children) {
      NodeState& state = states_[session][child];
      const v1::Node& waiting = trace_.sessions[session].nodes(static_cast<int>(child));
      for (const v1::Dep& dep : waiting.deps()) {
        if (dep.node() == node) state.ready_ns = std::max(state.ready_ns, at_ns + dep.delay_ns());
      }
      if (--state.waits_for > 0 || state.skipped) continue;
      due_.push({state.ready_ns + think_of(waiting, options_), session, child, false});
    }
  }

  void skip(uint32_t session, uint32_t failed) {
    std::vector<uint32_t> open = {failed};
    while (!open.empty()) {
      const uint32_t node = open.back();
      open.pop_back();
      for (const uint32_t child : states_[session][node].children) {
        NodeState& state = states_[session][child];
        if (std::exchange(state.skipped, true)) continue;
        out_.not_sent += trace_.sessions[session].nodes(static_cast<int>(child)).has_llm();
        open.push_back(child);
      }
    }
  }

  const ObservedTrace& trace_;
  const ObserveOptions& options_;
  HttpRequests& http_;
  PromptIds ids_;
  int64_t origin_ = 0;
  uint64_t in_flight_ = 0, requests_all_ = 0;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  std::vector<std::vector<NodeState>> states_;
  std::vector<std::pair<uint32_t, uint32_t>> places_;  // of each request: session and node
  std::map<uint64_t, MeasuredRequest> requests_;       // ended before an earlier one
  Observation out_;
};

}  // namespace

Result<void> ObservedTrace::header(const v1::TraceHeader& header) { return head = header, Result<void>{}; }

Result<void> ObservedTrace::shared_spans(const v1::SharedSpanTable& table) {
  tables.push_back(table);
  return {};
}

Result<void> ObservedTrace::session(const v1::Session& session) {
  sessions.push_back(session);
  return {};
}

RecordedLoad recorded_load(const ObservedTrace& trace, const ObserveOptions& options) {
  RecordedLoad out;
  for (uint64_t s = 0; s < sessions_used(trace, options); ++s) {
    const v1::Session& session = trace.sessions[s];
    std::vector<int64_t> ends;  // of each node; dependencies come before what waits for them
    for (const v1::Node& node : session.nodes()) {
      int64_t at = arrival_of(session, options) + (node.deps().empty() ? node.start_offset_ns() : 0);
      for (const v1::Dep& dep : node.deps()) at = std::max(at, ends[dep.node()] + dep.delay_ns());
      if (!node.deps().empty()) at += think_of(node, options);
      ends.push_back(at + duration_of(node));
      out.span_ns = std::max(out.span_ns, ends.back());
      out.requests += node.has_llm();
    }
  }
  return out;
}

Observation observe(const ObservedTrace& trace, const ObserveOptions& options, HttpRequests* http,
                    const ObserveProgress& progress) {
  Observation out = Driver(trace, options, http).run(progress);
  out.run.name = options.model;
  return out;
}

}  // namespace kvtwin
