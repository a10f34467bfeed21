// A backend for testing the Client alone: every request takes the time that `service` gives, and none waits
// for another. It stores the requests sent, in order.

#ifndef KVTWIN_TESTS_UNIT_REPLAY_FAKE_BACKEND_H_
#define KVTWIN_TESTS_UNIT_REPLAY_FAKE_BACKEND_H_

#include <functional>
#include <map>
#include <set>
#include <vector>

#include "traces/replay/replay_builder.h"

namespace kvtwin::testing {

constexpr int64_t kSecond = 1'000'000'000;

struct Sent {
  Instant at{};               // when the backend received it
  ReplayRequestInfo request;  // request.ready is when it was due
  std::vector<UnitRun> identity;
  std::vector<uint32_t> triggers;
};

class FakeBackend {
 public:
  std::function<int64_t(const ReplayRequestInfo&)> service = [](const ReplayRequestInfo&) { return kSecond; };
  std::function<bool(const ReplayRequestInfo&)> rejects = [](const ReplayRequestInfo&) { return false; };

  std::vector<Sent> sent;
  std::vector<std::pair<Instant, RequestId>> cancelled;
  std::vector<std::pair<Instant, SessionId>> ended;
  std::map<uint32_t, Instant> finished;  // by request, including aborted ones
  std::set<uint32_t> rejected;
  std::map<std::pair<uint32_t, uint32_t>, Instant> emitted;  // by request and tokens
  size_t live = 0, live_most = 0;
  Instant now{};

  void run(ReplayClient* client) {
    ClientEvents events;
    client->wake(Instant{0}, &events);
    take(client, events);
    for (;;) {
      const Instant wake = client->wake_at();
      const Instant next = due_.empty() ? kNever : Instant{due_.begin()->first.first};
      if (wake == kNever && next == kNever) return;
      events.clear();
      now = std::min(wake, next);
      if (next <= wake) {  // as in Backend::next(), answers come before timers
        const Answer answer = due_.begin()->second;
        due_.erase(due_.begin());
        if (dropped_.contains(raw(answer.request))) continue;
        deliver(client, answer, &events);
      } else {
        client->wake(now, &events);
      }
      take(client, events);
    }
  }

 private:
  enum class Kind { kTokens, kFinish, kCancel, kReject };
  struct Answer {
    Kind kind;
    RequestId request;
    uint32_t tokens;
  };

  void deliver(ReplayClient* client, const Answer& answer, ClientEvents* events) {
    const uint32_t request = raw(answer.request);
    if (answer.kind == Kind::kTokens) {
      emitted[{request, answer.tokens}] = now;
      return client->tokens_emitted(now, answer.request, answer.tokens, events);
    }
    dropped_.insert(request);
    --live;
    if (answer.kind == Kind::kReject) {
      rejected.insert(request);
      return client->request_rejected(now, answer.request, events);
    }
    finished[request] = now;
    client->request_finished(now, answer.request, answer.tokens, answer.kind == Kind::kCancel, events);
  }

  void later(int64_t at, Answer answer) { due_.emplace(std::pair{at, order_++}, answer); }

  void take(ReplayClient* client, const ClientEvents& events) {
    for (const Event& event : events) {
      if (const auto* ready = std::get_if<RequestReady>(&event)) {
        const ReplayRequestInfo info = client->request_info(ready->request);
        sent.push_back({now,
                        info,
                        {ready->identity.begin(), ready->identity.end()},
                        {ready->triggers.begin(), ready->triggers.end()}});
        live_most = std::max(live_most, ++live);
        if (rejects(info)) {
          later(now.ns, {Kind::kReject, ready->request, 0});
          continue;
        }
        const int64_t total = service(info);
        const auto emit = [&](uint32_t k) {
          later(now.ns + total * k / ready->output_tokens, {Kind::kTokens, ready->request, k});
        };
        emit(1);
        for (const uint32_t k : ready->triggers) emit(k);
        later(now.ns + total, {Kind::kFinish, ready->request, ready->output_tokens});
      } else if (const auto* cancel = std::get_if<RequestCancelled>(&event)) {
        cancelled.emplace_back(now, cancel->request);
        later(now.ns, {Kind::kCancel, cancel->request, 0});
      } else if (const auto* hint = std::get_if<SessionHint>(&event)) {
        ended.emplace_back(now, hint->session);
      }
    }
  }

  std::map<std::pair<int64_t, uint64_t>, Answer> due_;
  std::set<uint32_t> dropped_;
  uint64_t order_ = 0;
};

// A minimal header: sessions and requests arrive as recorded.
inline v1::TraceHeader plain_header(uint32_t block = 0, bool ceil = false) {
  v1::TraceHeader header;
  header.set_schema_version(1);
  header.set_session_arrivals(v1::ARR_CLOSED_LOOP);
  header.set_request_arrivals(v1::ARR_CLOSED_LOOP);
  header.set_block_tokens(block);
  header.set_block_ids_chained(true);
  header.set_tail_block_hashed(ceil);
  return header;
}

inline v1::Node* add_request(v1::Session* session, uint32_t prompt, uint32_t output, int64_t think_ns = 0) {
  v1::Node* node = session->add_nodes();
  node->mutable_llm()->set_prompt_tokens(prompt);
  node->mutable_llm()->set_output_tokens(output);
  node->mutable_llm()->set_think_ns(think_ns);
  return node;
}

inline v1::Node* add_tool(v1::Session* session, int64_t duration_ns, bool background = false) {
  v1::Node* node = session->add_nodes();
  node->mutable_tool()->set_duration_ns(duration_ns);
  node->mutable_tool()->set_background(background);
  return node;
}

inline void add_dep(v1::Node* node, uint32_t on, int64_t delay_ns = 0, uint32_t at_token = 0,
                    v1::DepKind kind = v1::DEP_DATA) {
  v1::Dep* dep = node->add_deps();
  dep->set_node(on);
  dep->set_delay_ns(delay_ns);
  dep->set_at_output_token(at_token);
  dep->set_kind(kind);
}

// `runs` lists {first, count}.
inline void set_key(v1::Node* node, const std::vector<std::pair<int64_t, uint32_t>>& runs,
                    v1::Scope scope = v1::SCOPE_SESSION) {
  v1::BlockKey* key = node->mutable_llm()->mutable_prompt_key();
  key->set_default_scope(scope);
  int64_t end = 0;
  for (const auto& [first, count] : runs) {
    key->add_first_delta(first - end);
    key->add_count(count);
    end = first + count;
  }
}

inline Result<std::unique_ptr<ReplayClient>> build(const v1::TraceHeader& header,
                                                   const std::vector<v1::Session>& sessions,
                                                   const ReplayOptions& options,
                                                   const std::vector<v1::SharedSpanTable>& tables = {}) {
  ReplayBuilder builder;
  if (auto ok = builder.header(header); !ok) return tl::unexpected(ok.error());
  for (const v1::Session& session : sessions) {
    if (auto ok = builder.session(session); !ok) return tl::unexpected(ok.error());
  }
  for (const v1::SharedSpanTable& table : tables) {
    if (auto ok = builder.shared_spans(table); !ok) return tl::unexpected(ok.error());
  }
  if (auto ok = builder.done(); !ok) return tl::unexpected(ok.error());
  return builder.build(options);
}

// The number of leading units that two requests have in common.
inline uint64_t common_units(const std::vector<UnitRun>& a, const std::vector<UnitRun>& b) {
  uint64_t common = 0;
  size_t i = 0, j = 0;
  uint32_t in_a = 0, in_b = 0;
  while (i < a.size() && j < b.size()) {
    if (a[i].space != b[j].space || a[i].first + in_a != b[j].first + in_b) break;
    const uint32_t step = std::min(a[i].count - in_a, b[j].count - in_b);
    common += step;
    if ((in_a += step) == a[i].count) ++i, in_a = 0;
    if ((in_b += step) == b[j].count) ++j, in_b = 0;
  }
  return common;
}
inline uint64_t common(const Sent& a, const Sent& b) { return common_units(a.identity, b.identity); }

inline uint64_t unit_count(const std::vector<UnitRun>& runs) {
  uint64_t units = 0;
  for (const UnitRun& run : runs) units += run.count;
  return units;
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_REPLAY_FAKE_BACKEND_H_
