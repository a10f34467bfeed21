// Core: session hints of clients, and their use by the prefix index.
//
// Times are taken from events that clients send, and from no others. So the awaited sessions, and the
// duration of the wait, do not depend on whether a backend coalesces steps.

#include <algorithm>

#include "engine/scheduler/core_state.h"

namespace kvtwin {
namespace {

// Pauses vary about as much as their mean. A session is given up when it is overdue by as long as its
// expected pause, and by at least a minute.
constexpr Duration kPatience{60'000'000'000};
// Upper bound of an expected pause, because a client may send any value.
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
