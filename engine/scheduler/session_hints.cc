#include "engine/scheduler/session_hints.h"

#include <algorithm>

namespace kvtwin {
namespace {

// Upper bound of an expected pause, because a client may send any value.
constexpr Duration kGapMax{int64_t{365} * 86'400 * 1'000'000'000};

}  // namespace

void SessionHints::begin_request(Instant now, SessionId session) {
  memories_.begin(session);
  prefixes_.forget_overdue(now);
  prefixes_.begin_request(now, session);
  drop_surplus();
}

void SessionHints::end_request(Instant now, SessionId session) {
  memories_.end(session);
  prefixes_.end_request(now, session);
  drop_surplus();
}

void SessionHints::hint(Instant now, const SessionHint& event) {
  prefixes_.forget_overdue(now);
  switch (event.kind) {
    case SessionHint::Kind::kSessionEnds:
      prefixes_.forget(event.session);
      memories_.forget(event.session);
      context_.out->push_back(DropSessionState{context_.config.engine, event.session});
      return;
    case SessionHint::Kind::kNextRequestExpected: {
      const Duration gap{std::clamp<int64_t>(event.expected_gap.ns, 0, kGapMax.ns)};
      prefixes_.expect(now, event.session, {event.tool, gap});
      return;
    }
  }
}

void SessionHints::drop_surplus() {
  for (SessionId session; memories_.take_surplus(&session);) {
    context_.digest.add(DecisionDigest::kSessionDropped, raw(session));
    context_.out->push_back(DropSessionState{context_.config.engine, session});
  }
}

}  // namespace kvtwin
