#include "tests/support/script_client.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin::testing {

ScriptClient::ScriptClient(const ScriptClientOptions& options)
    : options_(options),
      calls_(size_t{options.sessions} * options.calls_per_session),
      answers_(calls_.size()),
      told_(calls_.size(), 0),
      sent_(calls_.size(), false),
      spawned_(options.sessions, false) {
  Prng prng(draw({options.seed, 0xc11e47}));
  for (uint32_t session = 0; session < options.sessions; ++session) draw_session(session, &prng);
}

void ScriptClient::draw_session(uint32_t session, Prng* prng) {
  for (uint32_t number = 0; number < options_.calls_per_session; ++number) {
    Call& call = calls_[session * options_.calls_per_session + number];
    const auto output_max = prng->chance(1, 4) ? 1 : options_.output_tokens_max;
    call.output = static_cast<uint32_t>(prng->range(prng->chance(1, 8) ? 0 : 1, output_max));
    draw_identity(session, number, &call, prng);
    draw_mischief(session, &call, prng);
    if (options_.roles) draw_roles(number, &call);
  }
}

// A call's prompt goes on from one before it (its own session's last, or any other call's, cut anywhere),
// adds new units and ends with tokens that nobody else has.
void ScriptClient::draw_identity(uint32_t session, uint32_t number, Call* call, Prng* prng) {
  const uint32_t self = session * options_.calls_per_session + number;
  uint64_t units = 0;
  if (self > 0 && prng->chance(number > 0 ? 9 : 5, 10)) {
    const bool own = number > 0 && prng->chance(4, 5);
    const Call& before = calls_[own ? self - 1 : static_cast<uint32_t>(prng->range(0, self - 1))];
    uint64_t left = before.prompt / options_.unit_tokens;
    if (own) left = (before.prompt + before.output) / options_.unit_tokens;
    if (!own || prng->chance(1, 5)) left = prng->range(0, left);
    for (const UnitRun& run : before.identity) {
      const auto count = static_cast<uint32_t>(std::min<uint64_t>(run.count, left));
      // What only its maker can know ends what is shared.
      if (count == 0 || (run.space & kPrivateSpace) != 0) break;
      call->identity.push_back({run.space, run.first, count});
      left -= count;
      units += count;
    }
  }
  const auto fresh = static_cast<uint32_t>(prng->range(0, options_.prompt_tokens_max));
  call->prompt = static_cast<uint32_t>(units) * options_.unit_tokens + fresh;
  if (call->prompt == 0 && !prng->chance(1, 20)) call->prompt = 1;
  const uint32_t whole = (call->prompt + call->output) / options_.unit_tokens;
  // Output tokens that no later prompt repeats are private.
  uint32_t whole_public = whole;
  if (prng->chance(1, 2))
    whole_public = std::max<uint32_t>(static_cast<uint32_t>(units), call->prompt / options_.unit_tokens);
  whole_public = std::min(whole_public, whole);
  while (units < whole_public) {
    const auto count = static_cast<uint32_t>(prng->range(1, whole_public - units));
    call->identity.push_back({uint64_t{self} + 1, units, count});
    units += count;
  }
  if (units < whole) {
    const auto count = static_cast<uint32_t>(whole - units);
    call->identity.push_back({kPrivateSpace | self, units, count});
  }
}

// Equal tokens have equal roles, in pieces that are no multiples of anything.
void ScriptClient::draw_roles(uint32_t number, Call* call) const {
  const uint64_t made_by = call->identity.empty() ? 0 : call->identity.front().space;
  for (uint32_t at = 0; at < call->prompt;) {
    const uint64_t drawn = draw({options_.seed, made_by, at, 0x401e});
    const auto count = std::min(call->prompt - at, 1 + static_cast<uint32_t>(drawn % 50));
    const TokenRole role{static_cast<uint32_t>(drawn >> 8) % (number + 1),
                         static_cast<Modal>((drawn >> 16) % kModals),
                         static_cast<Semantic>((drawn >> 24) % kSemantics)};
    call->roles.push_back({role, count});
    at += count;
  }
}

void ScriptClient::draw_mischief(uint32_t session, Call* call, Prng* prng) {
  const auto gap = [&] {
    return prng->chance(1, 3)
               ? 0
               : static_cast<int64_t>(prng->range(0, static_cast<uint64_t>(options_.gap_ns_max)));
  };
  call->gap_ns = gap();
  if (prng->chance(options_.cancels_per_100, 100)) {
    if (prng->chance(1, 3) && call->output > 0) {
      call->cancel_at_tokens = static_cast<uint32_t>(prng->range(1, call->output));
    } else {
      call->cancel_after_ns = gap();
    }
  }
  if (session + 1 < options_.sessions && call->output > 0 && prng->chance(options_.spawns_per_100, 100)) {
    call->spawns = session + 1;
    call->spawn_at = static_cast<uint32_t>(prng->range(1, call->output));
  }
  std::set<uint32_t> triggers;
  if (call->cancel_at_tokens > 0) triggers.insert(call->cancel_at_tokens);
  if (call->spawn_at > 0) triggers.insert(call->spawn_at);
  while (call->output > 0 && prng->chance(1, 5)) {
    triggers.insert(static_cast<uint32_t>(prng->range(1, call->output)));
  }
  call->triggers.assign(triggers.begin(), triggers.end());
}

// --- time

Instant ScriptClient::wake_at() const {
  if (!started_) return Instant{0};
  return actions_.empty() ? kNever : std::get<Instant>(*actions_.begin());
}

void ScriptClient::wake(Instant now, ClientEvents* events) {
  if (!started_) {
    started_ = true;
    for (uint32_t session = 0; session < options_.sessions; ++session) {
      // Some wait to be spawned; whoever is never spawned is never sent.
      if (session % 3 == 2 && options_.spawns_per_100 > 0) continue;
      spawned_[session] = true;
      const uint32_t first = session * options_.calls_per_session;
      schedule(now, first, calls_[first].gap_ns, Kind::kReady, events);
    }
  }
  while (!actions_.empty() && std::get<Instant>(*actions_.begin()) <= now) {
    const auto [at, call, kind] = *actions_.begin();
    actions_.erase(actions_.begin());
    perform(now, call, kind, events);
  }
}

// What is due at once is done at once, without asking to be woken.
void ScriptClient::schedule(Instant now, uint32_t call, int64_t after, Kind kind, ClientEvents* events) {
  if (after == 0) {
    perform(now, call, kind, events);
  } else {
    actions_.emplace(now + Duration{after}, call, kind);
  }
}

void ScriptClient::perform(Instant now, uint32_t call, Kind kind, ClientEvents* events) {
  const Call& what = calls_[call];
  if (kind == Kind::kCancel) {
    if (answers_[call].kind == Answer::Kind::kNone) events->push_back(CallCancelled{CallId{call}});
    return;
  }
  KVT_CHECK(!sent_[call]);
  sent_[call] = true;
  ++unanswered_;
  const uint32_t session = call / options_.calls_per_session, turn = call % options_.calls_per_session;
  CallReady ready{CallId{call},  SessionId{session}, what.prompt, what.output,
                  what.identity, what.triggers,      what.roles,  turn};
  ready.index = turn;
  events->push_back(ready);
  if (what.cancel_after_ns >= 0) schedule(now, call, what.cancel_after_ns, Kind::kCancel, events);
}

// --- answers

void ScriptClient::tokens_emitted(Instant now, CallId id, uint32_t tokens, ClientEvents* events) {
  const uint32_t call = raw(id);
  const Call& what = calls_[call];
  KVT_CHECK(sent_[call]);
  KVT_CHECK(answers_[call].kind == Answer::Kind::kNone);
  KVT_CHECK(tokens > told_[call]);
  KVT_CHECK(tokens <= what.output);
  // It was asked about the first token and about the triggers, and about nothing else.
  KVT_CHECK(tokens == 1 || std::binary_search(what.triggers.begin(), what.triggers.end(), tokens));
  KVT_CHECK(told_[call] > 0 || tokens == 1);
  const auto missed = std::upper_bound(what.triggers.begin(), what.triggers.end(), told_[call]);
  KVT_CHECK(missed == what.triggers.end() || *missed >= tokens);
  told_[call] = tokens;
  if (tokens == what.spawn_at && !spawned_[what.spawns]) {
    spawned_[what.spawns] = true;
    const uint32_t first = what.spawns * options_.calls_per_session;
    schedule(now, first, calls_[first].gap_ns, Kind::kReady, events);
  }
  if (tokens == what.cancel_at_tokens) perform(now, call, Kind::kCancel, events);
}

void ScriptClient::call_finished(Instant now, CallId id, uint32_t tokens, bool cancelled,
                                 ClientEvents* events) {
  const uint32_t call = raw(id);
  KVT_CHECK(sent_[call]);
  KVT_CHECK(answers_[call].kind == Answer::Kind::kNone);
  KVT_CHECK(tokens <= calls_[call].output);
  KVT_CHECK(tokens >= told_[call]);
  KVT_CHECK(tokens == 0 || told_[call] > 0);
  KVT_CHECK(cancelled || options_.early_ends || tokens == calls_[call].output);
  const Call& what = calls_[call];
  KVT_CHECK(!cancelled || what.cancel_after_ns >= 0 || what.cancel_at_tokens > 0);
  answers_[call] = {now, tokens, cancelled ? Answer::Kind::kCancelled : Answer::Kind::kFinished};
  next_call(now, call, events);
}

void ScriptClient::call_rejected(Instant now, CallId id, ClientEvents* events) {
  const uint32_t call = raw(id);
  KVT_CHECK(sent_[call]);
  KVT_CHECK(answers_[call].kind == Answer::Kind::kNone);
  KVT_CHECK(told_[call] == 0 || (options_.late_rejects && told_[call] == 1));
  answers_[call] = {now, 0, Answer::Kind::kRejected};
  next_call(now, call, events);
}

void ScriptClient::next_call(Instant now, uint32_t call, ClientEvents* events) {
  --unanswered_;
  const uint32_t next = call + 1;
  if (next % options_.calls_per_session != 0) {
    if (draw({options_.seed, call, 0x417}) % 100 < options_.hints_per_100) {
      const auto gap = static_cast<int64_t>(draw({options_.seed, call, 0x418}) %
                                            (2 * static_cast<uint64_t>(options_.gap_ns_max) + 1));
      events->push_back(SessionHint{SessionId{call / options_.calls_per_session},
                                    SessionHint::Kind::kNextCallExpected, Duration{gap}});
    }
    schedule(now, next, calls_[next].gap_ns, Kind::kReady, events);
  } else {
    events->push_back(
        SessionHint{SessionId{call / options_.calls_per_session}, SessionHint::Kind::kSessionEnds, {}});
  }
}

uint64_t ScriptClient::token(CallId id, uint32_t position) const {
  const Call& call = calls_[raw(id)];
  uint64_t unit = position / options_.unit_tokens;
  for (const UnitRun& run : call.identity) {
    if (unit < run.count) return draw({run.space, run.first + unit, position % options_.unit_tokens});
    unit -= run.count;
  }
  return draw({uint64_t{raw(id)}, position, 0x9a1e});
}

}  // namespace kvtwin::testing
