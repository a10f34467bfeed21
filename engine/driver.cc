#include "engine/driver.h"

#include <deque>
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

// What a Core told the Client. Answered one at a time, after all commands of the apply went out.
using Answer = std::variant<TokensEmitted, FinishCall, RejectCall>;

class Loop {
 public:
  Loop(const RunOptions& options, Client* client, Backend* world, const std::vector<Observer*>& observers)
      : client_(client),
        world_(world),
        observers_(observers),
        router_(options.routing, static_cast<uint32_t>(options.engines.size())),
        check_(options.check_invariants) {
    cores_.reserve(options.engines.size());
    for (const CoreConfig& config : options.engines) {
      KVT_CHECK(raw(config.engine) == cores_.size());
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
    while (world_->next(&now, &event)) {
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
                   [&](const CallReady& e) { from_outside(router_.place(e), e); },
                   [&](const CallCancelled& e) {
                     // It may have finished at this very instant.
                     if (router_.is_live(e.call)) from_outside(router_.engine_of(e.call), e);
                   },
                   [&](const SessionHint& e) { hint(e); },
                   [&](const StepDone& e) { apply(e.ends.back(), e.engine, e); },
                   [&](const TransferDone& e) { from_outside(e.engine, e); },
                   [&](const TransferFailed& e) { from_outside(e.engine, e); },
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

  // Steps that ended before `event` are told first: folded or not, a Core sees the same order. What it
  // launches in answer is cut short as well, hence the loop.
  void from_outside(EngineId engine, const Event& event) {
    Event ended;
    while (world_->interrupt(engine, &ended)) apply(std::get<StepDone>(ended).ends.back(), engine, ended);
    apply(now_, engine, event);
  }

  void hint(const SessionHint& hint) {
    if (!router_.knows(hint.session)) return;  // it never sent a call
    from_outside(router_.engine_of_session(hint.session), hint);
    if (hint.kind == SessionHint::Kind::kSessionEnds) router_.session_ended(hint.session);
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
                     [&](const FinishCall& c) { answers_.emplace_back(c); },
                     [&](const RejectCall& c) { answers_.emplace_back(c); },
                     [&](const auto&) { world_->submit(command); },
                 },
                 command);
    }
    for (Observer* observer : observers_) observer->saw_state(at, engine, core);
  }

  void answer_client() {
    while (!answers_.empty()) {
      const Answer answer = answers_.front();
      answers_.pop_front();
      ClientEvents& events = client_events();
      std::visit(Overloaded{
                     [&](const TokensEmitted& a) {
                       if (client_ != nullptr) client_->tokens_emitted(now_, a.call, a.tokens, &events);
                     },
                     [&](const FinishCall& a) {
                       router_.ended(a.call);
                       if (client_ != nullptr)
                         client_->call_finished(now_, a.call, a.tokens, a.cancelled, &events);
                     },
                     [&](const RejectCall& a) {
                       router_.ended(a.call);
                       if (client_ != nullptr) client_->call_rejected(now_, a.call, &events);
                     },
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

  // One timer serves the Client: only a nearer wish sets another, and a late one finds nothing due.
  void arm_timer() {
    if (client_ == nullptr) return;
    const Instant at = client_->wake_at();
    if (at == kNever || at >= timer_at_) return;
    timer_at_ = at;
    world_->submit(SetTimer{kClient, TimerId{timer_next_++}, at < now_ ? now_ : at});
  }

  RunEnd end() const {
    RunEnd result{.ended_at = now_, .digest = 0, .events = events_, .idle = true};
    for (const Core& core : cores_) {
      result.digest = draw({result.digest, core.digest()});
      result.idle = result.idle && core.idle();
    }
    result.digest = draw({result.digest, router_.digest()});
    return result;
  }

  Client* const client_;
  Backend* const world_;
  const std::vector<Observer*>& observers_;
  Router router_;
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

RunEnd run(const RunOptions& options, Client* client, Backend* world,
           const std::vector<Observer*>& observers) {
  return Loop(options, client, world, observers).run();
}

}  // namespace kvtwin
