#include "scenarios/calibrate/trace_contexts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "engine/common/token_ids.h"
#include "scenarios/app/compose_parts.h"
#include "scenarios/app/compose_values.h"
#include "traces/replay/replay_roles.h"

namespace kvtwin {
namespace {

using NodeKey = std::pair<uint32_t, uint32_t>;  // session of the file, node of the session

// Answers every request when it is sent, so that the Client sends all its requests.
class InstantAnswers {
 public:
  InstantAnswers(Client* client, std::function<void(const RequestReady&)> on_request,
                 std::function<bool()> done)
      : client_(*client), on_request_(std::move(on_request)), done_(std::move(done)) {}

  void run() {
    Instant now{};
    ClientEvents events;
    client_.wake(now, &events);
    for (;;) {
      answer(now, std::move(events));
      events.clear();
      const Instant wake = client_.wake_at();
      if (done_() || wake == kNever) return;
      now = std::max(now, wake);
      client_.wake(now, &events);
    }
  }

 private:
  struct Open {
    RequestId request{};
    uint32_t output_tokens = 0;
    std::vector<uint32_t> triggers;
  };

  void answer(Instant now, ClientEvents events) {
    std::vector<Open> open;
    take(events, &open);
    for (size_t i = 0; i < open.size(); ++i) {  // grows: an answer releases further nodes
      const Open one = open[i];
      ClientEvents more;
      bool cancelled = false;
      uint32_t tokens = one.output_tokens;
      for (const uint32_t trigger : one.triggers) {
        if (cancelled) break;
        more.clear();
        client_.tokens_emitted(now, one.request, trigger, &more);
        cancelled = std::any_of(more.begin(), more.end(), [&](const Event& event) {
          const auto* cancel = std::get_if<RequestCancelled>(&event);
          return cancel != nullptr && cancel->request == one.request;
        });
        if (cancelled) tokens = trigger;
        take(more, &open);
      }
      more.clear();
      client_.request_finished(now, one.request, tokens, cancelled, &more);
      take(more, &open);
    }
  }

  // Spans of events are valid until the next call of the Client.
  void take(const ClientEvents& events, std::vector<Open>* open) {
    for (const Event& event : events) {
      const auto* ready = std::get_if<RequestReady>(&event);
      if (ready == nullptr) continue;
      on_request_(*ready);
      Open one{ready->request, ready->output_tokens, {1}};
      for (const uint32_t trigger : ready->triggers) {
        if (trigger > 1) one.triggers.push_back(trigger);
      }
      open->push_back(std::move(one));
    }
  }

  Client& client_;
  const std::function<void(const RequestReady&)> on_request_;
  const std::function<bool()> done_;
};

// Chooses the requests, in file order.
Result<std::set<NodeKey>> choose(const Scenario& scenario, const ReplayTable& table,
                                 const ContextChoice& choice) {
  std::vector<NodeKey> fit;
  uint64_t requests = 0;
  uint32_t shortest = UINT32_MAX, longest_output = 0;
  for (uint32_t s = 0; s < table.sessions.size(); ++s) {
    for (uint32_t n = 0; n < table.sessions[s].node_count; ++n) {
      const TableNode& node = table.nodes[table.sessions[s].node_first + n];
      if (node.kind != NodeKind::kRequest) continue;
      ++requests;
      shortest = std::min(shortest, node.prompt_tokens);
      longest_output = std::max(longest_output, node.output_tokens);
      const bool fits = node.prompt_tokens >= choice.tokens_min && node.prompt_tokens <= choice.tokens_max &&
                        node.output_tokens >= choice.output_min;
      if (fits) fit.emplace_back(s, n);
    }
  }
  if (fit.empty()) {
    return make_error(
        scenario.where("trace.path"),
        fmt::format("none of {} requests has a prompt of {} to {} tokens and an output of {} or more",
                    requests, choice.tokens_min, choice.tokens_max, choice.output_min),
        fmt::format("the shortest prompt has {} tokens, the longest output {}: change "
                    "--context-min, --context-max or the required outputs",
                    shortest, longest_output));
  }
  std::set<NodeKey> out;
  for (uint64_t i = 0; i < choice.count; ++i) out.insert(fit[i * fit.size() / choice.count]);
  return out;
}

// Keeps the sessions that hold chosen requests, and the tables that they may refer to.
class RolesSink final : public TraceSink {
 public:
  explicit RolesSink(const std::vector<TraceContext>& contexts) {
    for (const TraceContext& context : contexts) wanted_.insert(context.session);
  }
  Result<void> header(const v1::TraceHeader&) override { return {}; }
  Result<void> shared_spans(const v1::SharedSpanTable& table) override {
    tables_[table.table()] = table;
    return {};
  }
  Result<void> session(const v1::Session& session) override {
    if (wanted_.contains(index_)) sessions_[index_] = session;
    ++index_;
    return {};
  }

  PromptRoles roles(const TraceContext& context, uint32_t* turn) const {
    const v1::Session& session = sessions_.at(context.session);
    const v1::LlmRequest& request = session.nodes(static_cast<int>(context.node)).llm();
    *turn = request.turn();
    return prompt_roles(request, [&](uint32_t table, uint32_t index) -> const v1::Span* {
      if (table == 0) return at(session.spans(), index);
      const auto found = tables_.find(table);
      return found == tables_.end() ? nullptr : at(found->second.spans(), index);
    });
  }

 private:
  template <typename Spans>
  static const v1::Span* at(const Spans& spans, uint32_t index) {
    return index < static_cast<uint32_t>(spans.size()) ? &spans.Get(static_cast<int>(index)) : nullptr;
  }

  std::set<uint32_t> wanted_;
  uint32_t index_ = 0;
  std::map<uint32_t, v1::Session> sessions_;
  std::map<uint32_t, v1::SharedSpanTable> tables_;
};

}  // namespace

Result<std::vector<TraceContext>> trace_contexts(const Scenario& scenario, Composed* composed,
                                                 const ContextChoice& choice) {
  ReplayClient* const replay = composed->client.get();
  const Result<std::set<NodeKey>> wanted = choose(scenario, replay->table(), choice);
  if (!wanted) return tl::unexpected<Error>(wanted.error());
  cpu::TokenIdOptions options = token_options(scenario, *composed);
  options.outputs_unknown = false;
  cpu::IdentityTokens tokens(options);
  std::map<NodeKey, TraceContext> found;
  const auto on_request = [&](const RequestReady& ready) {
    const ReplayRequestInfo info = replay->request_info(ready.request);
    const NodeKey key{info.session_index, info.node};
    if (info.replica != 0 || !wanted->contains(key) || found.contains(key)) return;
    TraceContext& context = found[key];
    context.session = info.session_index, context.node = info.node, context.spans = ready.spans;
    for (uint32_t p = 0; p < ready.prompt_tokens + ready.output_tokens; ++p)
      (p < ready.prompt_tokens ? context.prompt : context.output).push_back(tokens.token(ready.request, p));
  };
  InstantAnswers(tokens.watch(replay), on_request, [&] { return found.size() == wanted->size(); }).run();
  std::vector<TraceContext> out;
  for (auto& [key, context] : found) out.push_back(std::move(context));
  if (out.empty())  // other requests abort them, or nothing releases them
    return make_error(scenario.where("trace.path"), "none of the chosen requests is ever sent",
                      "another trace");
  return out;
}

Result<std::vector<ContextRoles>> context_roles(const Scenario& scenario,
                                                const std::vector<TraceContext>& contexts) {
  std::vector<ContextRoles> out;
  if (const ChatTemplate* const chat = find_chat_template(scenario.values.replay().chat_template())) {
    for (const TraceContext& context : contexts) {
      PromptTags tags = tags_of(*chat, {.roles = true}, context.prompt);
      out.push_back({std::move(tags.roles), tags.turn});
    }
    return out;
  }
  RolesSink sink(contexts);
  if (Result<void> ok = read_trace(scenario, nullptr, &sink); !ok) return tl::unexpected<Error>(ok.error());
  for (const TraceContext& context : contexts) {
    ContextRoles roles;
    PromptRoles found = sink.roles(context, &roles.turn);
    if (found.unknown_tokens == context.prompt.size()) {
      return make_error(
          scenario.where("trace.path"),
          fmt::format("has no roles of tokens (session {}, node {})", context.session, context.node),
          "a trace with roles: from kvtwin trace synth, or imported from agents' logs");
    }
    roles.runs = std::move(found.runs);
    out.push_back(std::move(roles));
  }
  return out;
}

}  // namespace kvtwin
