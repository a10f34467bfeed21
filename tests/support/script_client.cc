#include "tests/support/script_client.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/prompt_span_finder.h"

namespace kvtwin::testing {
namespace {

PromptSpans spans_of(const std::vector<RoleRun>& roles) {
  PromptSpanFinder finder;
  for (const RoleRun& run : roles) finder.add(run.role.semantic, run.role.turn % 2 == 0, run.count);
  return finder.find();
}

}  // namespace

ScriptClient::ScriptClient(const ScriptClientOptions& options)
    : options_(options),
      requests_(size_t{options.sessions} * options.requests_per_session),
      answers_(requests_.size()),
      pending_(requests_.size(), 0),
      sent_(requests_.size(), false),
      spawned_(options.sessions, false) {
  Prng prng(draw({options.seed, 0xc11e47}));
  for (uint32_t session = 0; session < options.sessions; ++session) draw_session(session, &prng);
}

void ScriptClient::draw_session(uint32_t session, Prng* prng) {
  for (uint32_t number = 0; number < options_.requests_per_session; ++number) {
    Request& request = requests_[session * options_.requests_per_session + number];
    const auto output_max = prng->chance(1, 4) ? 1 : options_.output_tokens_max;
    request.output = static_cast<uint32_t>(prng->range(prng->chance(1, 8) ? 0 : 1, output_max));
    draw_identity(session, number, &request, prng);
    draw_mischief(session, &request, prng);
    if (options_.roles || options_.spans) draw_roles(number, &request);
    if (options_.spans) request.spans = spans_of(request.roles);
    if (!options_.roles) request.roles.clear();
  }
}

// A request's prompt continues an earlier one (its own session's last, or a part of any other), adds new
// units and ends with tokens of its own.
void ScriptClient::draw_identity(uint32_t session, uint32_t number, Request* request, Prng* prng) {
  const uint32_t self = session * options_.requests_per_session + number;
  uint64_t units = 0;
  if (self > 0 && prng->chance(number > 0 ? 9 : 5, 10)) {
    const bool own = number > 0 && prng->chance(4, 5);
    const Request& before = requests_[own ? self - 1 : static_cast<uint32_t>(prng->range(0, self - 1))];
    uint64_t left = before.prompt / options_.unit_tokens;
    if (own) left = (before.prompt + before.output) / options_.unit_tokens;
    if (!own || prng->chance(1, 5)) left = prng->range(0, left);
    for (const UnitRun& run : before.identity) {
      const auto count = static_cast<uint32_t>(std::min<uint64_t>(run.count, left));
      // A private unit ends the shared prefix: no other request can know its tokens.
      if (count == 0 || (run.space & kPrivateSpace) != 0) break;
      request->identity.push_back({run.space, run.first, count});
      left -= count;
      units += count;
    }
  }
  const auto fresh = static_cast<uint32_t>(prng->range(0, options_.prompt_tokens_max));
  request->prompt = static_cast<uint32_t>(units) * options_.unit_tokens + fresh;
  if (request->prompt == 0 && !prng->chance(1, 20)) request->prompt = 1;
  const uint32_t whole = (request->prompt + request->output) / options_.unit_tokens;
  // Output tokens that no later prompt repeats are private.
  uint32_t whole_public = whole;
  if (prng->chance(1, 2))
    whole_public = std::max<uint32_t>(static_cast<uint32_t>(units), request->prompt / options_.unit_tokens);
  whole_public = std::min(whole_public, whole);
  while (units < whole_public) {
    const auto count = static_cast<uint32_t>(prng->range(1, whole_public - units));
    request->identity.push_back({uint64_t{self} + 1, units, count});
    units += count;
  }
  if (units < whole) {
    const auto count = static_cast<uint32_t>(whole - units);
    request->identity.push_back({kPrivateSpace | self, units, count});
  }
}

// Equal tokens have equal roles. Run lengths are not multiples of units or pages.
void ScriptClient::draw_roles(uint32_t number, Request* request) const {
  const uint64_t made_by = request->identity.empty() ? 0 : request->identity.front().space;
  for (uint32_t at = 0; at < request->prompt;) {
    const uint64_t drawn = draw({options_.seed, made_by, at, 0x401e});
    const auto count = std::min(request->prompt - at, 1 + static_cast<uint32_t>(drawn % 50));
    const TokenRole role{static_cast<uint32_t>(drawn >> 8) % (number + 1),
                         static_cast<Modal>((drawn >> 16) % kModals),
                         static_cast<Semantic>((drawn >> 24) % kSemantics)};
    request->roles.push_back({role, count});
    at += count;
  }
}

void ScriptClient::draw_mischief(uint32_t session, Request* request, Prng* prng) {
  const auto gap = [&] {
    return prng->chance(1, 3)
               ? 0
               : static_cast<int64_t>(prng->range(0, static_cast<uint64_t>(options_.gap_ns_max)));
  };
  request->gap_ns = gap();
  if (prng->chance(options_.cancels_per_100, 100)) {
    if (prng->chance(1, 3) && request->output > 0) {
      request->cancel_at_tokens = static_cast<uint32_t>(prng->range(1, request->output));
    } else {
      request->cancel_after_ns = gap();
    }
  }
  if (session + 1 < options_.sessions && request->output > 0 && prng->chance(options_.spawns_per_100, 100)) {
    request->spawns = session + 1;
    request->spawn_at = static_cast<uint32_t>(prng->range(1, request->output));
  }
  std::set<uint32_t> triggers;
  if (request->cancel_at_tokens > 0) triggers.insert(request->cancel_at_tokens);
  if (request->spawn_at > 0) triggers.insert(request->spawn_at);
  while (request->output > 0 && prng->chance(1, 5)) {
    triggers.insert(static_cast<uint32_t>(prng->range(1, request->output)));
  }
  request->triggers.assign(triggers.begin(), triggers.end());
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
      // Some sessions wait to be spawned. A session that is never spawned sends nothing.
      if (session % 3 == 2 && options_.spawns_per_100 > 0) continue;
      spawned_[session] = true;
      const uint32_t first = session * options_.requests_per_session;
      schedule(now, first, requests_[first].gap_ns, Kind::kReady, events);
    }
  }
  while (!actions_.empty() && std::get<Instant>(*actions_.begin()) <= now) {
    const auto [at, request, kind] = *actions_.begin();
    actions_.erase(actions_.begin());
    perform(now, request, kind, events);
  }
}

// An action that is due now is performed now, without a wake-up.
void ScriptClient::schedule(Instant now, uint32_t request, int64_t after, Kind kind, ClientEvents* events) {
  if (after == 0) {
    perform(now, request, kind, events);
  } else {
    actions_.emplace(now + Duration{after}, request, kind);
  }
}

void ScriptClient::perform(Instant now, uint32_t request, Kind kind, ClientEvents* events) {
  const Request& what = requests_[request];
  if (kind == Kind::kCancel) {
    if (answers_[request].kind == Answer::Kind::kNone)
      events->push_back(RequestCancelled{RequestId{request}});
    return;
  }
  KVT_CHECK(!sent_[request]);
  sent_[request] = true;
  ++unanswered_;
  const uint32_t session = request / options_.requests_per_session,
                 turn = request % options_.requests_per_session;
  RequestReady ready{RequestId{request}, SessionId{session}, what.prompt, what.output,
                     what.identity,      what.triggers,      what.roles,  turn};
  ready.index = turn;
  ready.spans = what.spans;
  events->push_back(ready);
  if (what.cancel_after_ns >= 0) schedule(now, request, what.cancel_after_ns, Kind::kCancel, events);
}

// --- answers

void ScriptClient::tokens_emitted(Instant now, RequestId id, uint32_t tokens, ClientEvents* events) {
  const uint32_t request = raw(id);
  const Request& what = requests_[request];
  KVT_CHECK(sent_[request]);
  KVT_CHECK(answers_[request].kind == Answer::Kind::kNone);
  KVT_CHECK(tokens > pending_[request]);
  KVT_CHECK(tokens <= what.output);
  // The Client is notified of the first token and of the triggers only.
  KVT_CHECK(tokens == 1 || std::binary_search(what.triggers.begin(), what.triggers.end(), tokens));
  KVT_CHECK(pending_[request] > 0 || tokens == 1);
  const auto missed = std::upper_bound(what.triggers.begin(), what.triggers.end(), pending_[request]);
  KVT_CHECK(missed == what.triggers.end() || *missed >= tokens);
  pending_[request] = tokens;
  if (tokens == what.spawn_at && !spawned_[what.spawns]) {
    spawned_[what.spawns] = true;
    const uint32_t first = what.spawns * options_.requests_per_session;
    schedule(now, first, requests_[first].gap_ns, Kind::kReady, events);
  }
  if (tokens == what.cancel_at_tokens) perform(now, request, Kind::kCancel, events);
}

void ScriptClient::request_finished(Instant now, RequestId id, uint32_t tokens, bool cancelled,
                                    ClientEvents* events) {
  const uint32_t request = raw(id);
  KVT_CHECK(sent_[request]);
  KVT_CHECK(answers_[request].kind == Answer::Kind::kNone);
  KVT_CHECK(tokens <= requests_[request].output);
  KVT_CHECK(tokens >= pending_[request]);
  KVT_CHECK(tokens == 0 || pending_[request] > 0);
  KVT_CHECK(cancelled || options_.early_ends || tokens == requests_[request].output);
  const Request& what = requests_[request];
  KVT_CHECK(!cancelled || what.cancel_after_ns >= 0 || what.cancel_at_tokens > 0);
  answers_[request] = {now, tokens, cancelled ? Answer::Kind::kCancelled : Answer::Kind::kFinished};
  next_request(now, request, events);
}

void ScriptClient::request_rejected(Instant now, RequestId id, ClientEvents* events) {
  const uint32_t request = raw(id);
  KVT_CHECK(sent_[request]);
  KVT_CHECK(answers_[request].kind == Answer::Kind::kNone);
  KVT_CHECK(pending_[request] == 0 || (options_.late_rejects && pending_[request] == 1));
  answers_[request] = {now, 0, Answer::Kind::kRejected};
  next_request(now, request, events);
}

void ScriptClient::next_request(Instant now, uint32_t request, ClientEvents* events) {
  --unanswered_;
  const uint32_t next = request + 1;
  if (next % options_.requests_per_session != 0) {
    if (draw({options_.seed, request, 0x417}) % 100 < options_.hints_per_100) {
      const auto gap = static_cast<int64_t>(draw({options_.seed, request, 0x418}) %
                                            (2 * static_cast<uint64_t>(options_.gap_ns_max) + 1));
      events->push_back(SessionHint{SessionId{request / options_.requests_per_session},
                                    SessionHint::Kind::kNextRequestExpected, Duration{gap},
                                    static_cast<uint32_t>(draw({options_.seed, request, 0x419}) % 4)});
    }
    schedule(now, next, requests_[next].gap_ns, Kind::kReady, events);
  } else {
    events->push_back(
        SessionHint{SessionId{request / options_.requests_per_session}, SessionHint::Kind::kSessionEnds, {}});
  }
}

uint64_t ScriptClient::token(RequestId id, uint32_t position) const {
  const Request& request = requests_[raw(id)];
  uint64_t unit = position / options_.unit_tokens;
  for (const UnitRun& run : request.identity) {
    if (unit < run.count) return draw({run.space, run.first + unit, position % options_.unit_tokens});
    unit -= run.count;
  }
  return draw({uint64_t{raw(id)}, position, 0x9a1e});
}

}  // namespace kvtwin::testing
