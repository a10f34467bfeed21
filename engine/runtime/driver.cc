#include "engine/runtime/driver.h"

#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/prng.h"

namespace kvtwin {
namespace {

template <class... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <class... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

// A Core's commands to the Client and the driver. Each is processed after all commands of its apply().
using Answer = std::variant<TokensEmitted, FinishRequest, RejectRequest, HandOver, SourceRead>;

// A request that will be handed over: the data of its RequestReady, to be sent to the second engine.
struct HandoverRequest {
  RequestReady ready;
  std::vector<UnitRun> identity;
  std::vector<uint32_t> triggers;
  std::vector<RoleRun> roles;
  std::vector<PageId> pages;
  bool cancelled = false;

  explicit HandoverRequest(const RequestReady& event)
      : ready(event),
        identity(event.identity.begin(), event.identity.end()),
        triggers(event.triggers.begin(), event.triggers.end()),
        roles(event.roles.begin(), event.roles.end()) {}
  RequestReady arrival(EngineId from) {
    ready.identity = identity;
    ready.triggers = triggers;
    ready.roles = roles;
    ready.emitted = 1;
    ready.from = from;
    ready.source = pages;
    return ready;
  }
};

class Loop {
 public:
  Loop(const RunOptions& options, Client* client, Backend* backend, const std::vector<Observer*>& observers)
      : client_(client),
        backend_(backend),
        observers_(observers),
        prefilling_(options.prefill_engines),
        router_(options.routing,
                prefilling_ > 0 ? prefilling_ : static_cast<uint32_t>(options.engines.size())),
        check_(options.check_invariants) {
    if (prefilling_ > 0) {
      KVT_CHECK(prefilling_ < options.engines.size());
      decoders_.emplace(options.routing, static_cast<uint32_t>(options.engines.size()) - prefilling_,
                        EngineId{static_cast<uint16_t>(prefilling_)});
    }
    cached_ = [this](EngineId engine, const RequestReady& request) {
      return cores_[raw(engine)].tokens_cached(request);
    };
    cores_.reserve(options.engines.size());
    for (const CoreConfig& config : options.engines) {
      KVT_CHECK(raw(config.engine) == cores_.size());
      KVT_CHECK(config.prefill_only == (raw(config.engine) < prefilling_));
      if (options.make_axes) {
        cores_.emplace_back(config, options.make_axes(config));
      } else {
        cores_.emplace_back(config);
      }
    }
  }

  RunEnd run() {
    if (client_ != nullptr) wake_client();
    Instant now;
    Event event;
    while (backend_->next(&now, &event)) {
      now_ = now;
      take(event);
      answer_client();
      arm_timer();
    }
    return end();
  }

 private:
  void take(const Event& event) {
    std::visit(Overloaded{
                   [&](const RequestReady& e) {
                     if (prefilling_ > 0 && e.output_tokens > 1) moving_.emplace(e.request, e);
                     from_outside(router_.place(e, cached_), e);
                   },
                   [&](const RequestCancelled& e) { cancel(e); },
                   [&](const SessionHint& e) { hint(e); },
                   [&](const StepDone& e) { apply(e.ends.back(), e.engine, e); },
                   [&](const TransferDone& e) { from_outside(e.engine, e); },
                   [&](const TransferFailed& e) { from_outside(e.engine, e); },
                   [&](const PagesTaken& e) { from_outside(e.engine, e); },
                   [&](const Timer& e) {
                     if (e.engine == kClient) {
                       timer_at_ = kNever;
                       wake_client();
                     } else {
                       from_outside(e.engine, e);
                     }
                   },
               },
               event);
  }

  // Steps that ended before `event` are applied first, so that a Core sees the same order whether steps are
  // coalesced or not. Steps that the Core launches meanwhile are cut short as well, hence the loop.
  void from_outside(EngineId engine, const Event& event) {
    Event ended;
    while (backend_->interrupt(engine, &ended)) apply(std::get<StepDone>(ended).ends.back(), engine, ended);
    apply(now_, engine, event);
  }

  void cancel(const RequestCancelled& event) {
    // The request may have finished at this very instant, or may be about to be placed again.
    if (router_.is_live(event.request)) {
      const auto moving = moving_.find(event.request);
      if (moving != moving_.end() && !moving->second.pages.empty()) {
        moving->second.cancelled = true;
      } else {
        from_outside(router_.engine_of(event.request), event);
      }
    } else if (decoders_ && decoders_->is_live(event.request)) {
      from_outside(decoders_->engine_of(event.request), event);
    }
  }

  void hint(const SessionHint& event) {
    hint(event, &router_);
    if (decoders_) hint(event, &*decoders_);
  }

  // Reaches no engine if the session has sent no request.
  void hint(const SessionHint& event, Router* router) {
    for (const EngineId engine : router->engines_of_session(event.session)) from_outside(engine, event);
    if (event.kind == SessionHint::Kind::kSessionEnds) {
      router->session_ended(event.session);
    } else {
      router->session_returns(event.session, event.expected_gap);
    }
  }

  // The prompt is computed. A decoding engine takes the request and sends SourceRead when it has its pages.
  void move(const HandOver& from) {
    const auto found = moving_.find(from.request);
    KVT_CHECK(found != moving_.end());
    HandoverRequest moving = std::move(found->second);
    moving_.erase(found);
    router_.ended(from.request);
    const RequestReady arrival = moving.arrival(from.engine);
    from_outside(decoders_->place(arrival, cached_), arrival);
    if (moving.cancelled) cancel({from.request});
  }

  void ended(RequestId request) {
    moving_.erase(request);
    router_.is_live(request) ? router_.ended(request) : decoders_->ended(request);
  }

  void apply(Instant at, EngineId engine, const Event& event) {
    ++events_;
    KVT_CHECK(raw(engine) < cores_.size());
    Core& core = cores_[raw(engine)];
    for (Observer* observer : observers_) observer->saw_event(at, engine, event);
    commands_.clear();
    core.apply(at, event, &commands_);
    if (check_) core.check_invariants();
    for (const Command& command : commands_) {
      for (Observer* observer : observers_) observer->saw_command(at, command);
      std::visit(Overloaded{
                     [&](const TokensEmitted& c) { answers_.emplace_back(c); },
                     [&](const FinishRequest& c) { answers_.emplace_back(c); },
                     [&](const RejectRequest& c) { answers_.emplace_back(c); },
                     [&](const SourceRead& c) { answers_.emplace_back(c); },
                     [&](const HandOver& c) {
                       const auto moving = moving_.find(c.request);
                       KVT_CHECK(moving != moving_.end());
                       moving->second.pages.assign(c.pages.begin(), c.pages.end());
                       answers_.emplace_back(HandOver{c.engine, c.request, {}});
                     },
                     [&](const auto&) { backend_->submit(command); },
                 },
                 command);
    }
    for (Observer* observer : observers_) observer->saw_state(at, engine, core);
  }

  void answer_client() {
    while (!answers_.empty()) {
      const Answer answer = answers_.front();
      answers_.pop_front();
      if (const auto* over = std::get_if<HandOver>(&answer)) {
        move(*over);
        continue;
      }
      if (const auto* read = std::get_if<SourceRead>(&answer)) {
        take(PagesTaken{read->from, read->request});
        continue;
      }
      ClientEvents& events = client_events();
      std::visit(Overloaded{
                     [&](const TokensEmitted& a) {
                       if (client_ != nullptr) client_->tokens_emitted(now_, a.request, a.tokens, &events);
                     },
                     [&](const FinishRequest& a) {
                       ended(a.request);
                       if (client_ != nullptr)
                         client_->request_finished(now_, a.request, a.tokens, a.cancelled, &events);
                     },
                     [&](const RejectRequest& a) {
                       ended(a.request);
                       if (client_ != nullptr) client_->request_rejected(now_, a.request, &events);
                     },
                     [](const auto&) {},
                 },
                 answer);
      deliver(events);
    }
  }

  void wake_client() {
    ClientEvents& events = client_events();
    client_->wake(now_, &events);
    deliver(events);
    answer_client();
    arm_timer();
  }

  ClientEvents& client_events() {
    client_events_.clear();
    return client_events_;
  }

  void deliver(const ClientEvents& events) {
    for (const Event& event : events) take(event);
  }

  // The Client uses one timer. Only an earlier instant sets another; a timer that comes late finds no event
  // due.
  void arm_timer() {
    if (client_ == nullptr) return;
    const Instant at = client_->wake_at();
    if (at == kNever || at >= timer_at_) return;
    timer_at_ = at;
    backend_->submit(SetTimer{kClient, TimerId{timer_next_++}, at < now_ ? now_ : at});
  }

  RunEnd end() const {
    RunEnd result{.ended_at = now_, .digest = 0, .events = events_, .idle = true};
    for (const Core& core : cores_) {
      result.digest = draw({result.digest, core.digest()});
      result.idle = result.idle && core.idle();
    }
    result.digest = draw({result.digest, router_.digest()});
    if (decoders_) result.digest = draw({result.digest, decoders_->digest()});
    return result;
  }

  Client* const client_;
  Backend* const backend_;
  const std::vector<Observer*>& observers_;
  const uint32_t prefilling_;
  Router router_;                   // of all engines, or of the prefilling engines
  std::optional<Router> decoders_;  // of the decoding engines
  Router::TokensCached cached_;
  std::map<RequestId, HandoverRequest> moving_;  // requests to be handed over once their prompt is computed
  std::vector<Core> cores_;
  const bool check_;
  Instant now_{};
  Instant timer_at_ = kNever;
  uint64_t timer_next_ = 0;
  uint64_t events_ = 0;
  std::vector<Command> commands_;
  std::deque<Answer> answers_;
  ClientEvents client_events_;
};

}  // namespace

RunEnd run(const RunOptions& options, Client* client, Backend* backend,
           const std::vector<Observer*>& observers) {
  return Loop(options, client, backend, observers).run();
}

}  // namespace kvtwin
