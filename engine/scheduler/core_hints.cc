// What clients say of their sessions, and what the prefix index makes of it.
//
// Times come in with events that clients send, and at no others: so what is waited for, and for how long, is
// the same whether a backend folds its steps or not.

#include <algorithm>

#include "engine/scheduler/core_state.h"

namespace kvtwin {
namespace {

// Pauses scatter about as widely as they are long: a session is given up when it is overdue for as long as it
// was expected to be away, and for a minute at least.
constexpr Duration kPatience{60'000'000'000};
// A client may say anything; nobody is away for longer than a year.
constexpr Duration kGapMax{int64_t{365} * 86'400 * 1'000'000'000};

}  // namespace

PrefixIndex& Core::State::prefixes() { return prefix_checkpoints ? prefix_checkpoints->index() : index; }

void Core::State::session_here(SessionId session) {
  prefixes().forget_overdue(now);
  prefixes().begin_request(session);
}

void Core::State::session_left(SessionId session) { prefixes().end_request(session, now + kPatience); }

void Core::State::on(const SessionHint& event) {
  prefixes().forget_overdue(now);
  switch (event.kind) {
    case SessionHint::Kind::kSessionEnds:
      prefixes().forget(event.session);
      sessions.forget(event.session);
      out->push_back(DropSessionState{config.engine, event.session});
      return;
    case SessionHint::Kind::kNextRequestExpected: {
      const Duration gap{std::clamp<int64_t>(event.expected_gap.ns, 0, kGapMax.ns)};
      prefixes().expect(event.session, now + gap + std::max(gap, kPatience));
      return;
    }
  }
}

}  // namespace kvtwin
