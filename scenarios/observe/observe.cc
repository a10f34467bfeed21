#include "scenarios/observe/observe.h"

#include <fmt/format.h>

#include <algorithm>
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
      if (!due_.empty()) wait_ms = std::clamp<int64_t>((due_.top().at_ns - now()) / 1'000'000, 0, kPollMs);
      for (const HttpReply& reply : http_.poll(static_cast<int>(wait_ms))) take(reply);
      if (progress) progress(out_.sent - in_flight_, in_flight_);
    }
    return std::move(out_);
  }

 private:
  int64_t now() const { return http_.now_ns() - origin_; }

  void start_sessions() {
    uint64_t count = trace_.sessions.size();
    if (options_.sessions_max > 0) count = std::min(count, options_.sessions_max);
    states_.resize(count);
    for (uint32_t s = 0; s < count; ++s) {
      const v1::Session& session = trace_.sessions[s];
      states_[s].resize(static_cast<size_t>(session.nodes_size()));
      const auto arrival =
          static_cast<int64_t>(static_cast<double>(session.arrival_at_ns()) * options_.arrival_scale);
      for (uint32_t n = 0; n < states_[s].size(); ++n) {
        const v1::Node& node = session.nodes(static_cast<int>(n));
        states_[s][n].waits_for = static_cast<uint32_t>(node.deps_size());
        for (const v1::Dep& dep : node.deps()) states_[s][dep.node()].children.push_back(n);
        if (node.deps().empty()) due_.push({arrival + node.start_offset_ns(), s, n, false});
      }
    }
  }

  void release(const Due& due) {
    const v1::Node& node = trace_.sessions[due.session].nodes(static_cast<int>(due.node));
    if (node.has_llm()) return send(due.session, due.node, node.llm());
    const int64_t duration = node.has_tool() ? node.tool().duration_ns() : node.opaque().duration_ns();
    due_.push({due.at_ns + duration, due.session, due.node, true});
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
    http_.send(id, options_.chat ? "chat/completions" : "completions", body.dump());
  }

  void take(const HttpReply& reply) {
    --in_flight_;
    const auto [session, node] = places_[reply.id];
    const v1::LlmRequest& request = trace_.sessions[session].nodes(static_cast<int>(node)).llm();
    const auto seconds = [this](int64_t ns) { return static_cast<double>(ns - origin_) / 1e9; };
    MeasuredRequest measured;
    measured.session = trace_.sessions[session].id();
    measured.prompt = reply.prompt_tokens.value_or(request.prompt_tokens());
    measured.output = reply.output_tokens.value_or(reply.chunks);
    measured.begin_s = seconds(reply.sent_ns);
    measured.finished = reply.error.empty();
    measured.first_s = reply.chunks > 0 ? seconds(reply.first_token_ns) : seconds(reply.end_ns);
    measured.end_s = reply.chunks > 0 ? seconds(reply.last_token_ns) : seconds(reply.end_ns);
    out_.prompts_off += measured.finished && measured.prompt != request.prompt_tokens();
    requests_.emplace(reply.id, std::move(measured));
    flush();
    if (reply.error.empty()) return finish(session, node, reply.end_ns - origin_);
    ++out_.failed;
    ++out_.errors[reply.error];
    skip(session, node);
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
      const int64_t think = waiting.has_llm() ? std::min(waiting.llm().think_ns(), options_.think_cap_ns) : 0;
      due_.push({state.ready_ns + think, session, child, false});
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
  uint64_t in_flight_ = 0;
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

Observation observe(const ObservedTrace& trace, const ObserveOptions& options, HttpRequests* http,
                    const ObserveProgress& progress) {
  Observation out = Driver(trace, options, http).run(progress);
  out.run.name = options.model;
  return out;
}

}  // namespace kvtwin
