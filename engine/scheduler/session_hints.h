// SessionHints tells the prefix index which sessions are here, expected or gone, and drops the query memory
// of sessions beyond the number that the backend retains.
//
// Times are taken from events that clients send, and from no others. So the awaited sessions, and the
// duration of the wait, do not depend on whether a backend coalesces steps.

#ifndef KVTWIN_ENGINE_SCHEDULER_SESSION_HINTS_H_
#define KVTWIN_ENGINE_SCHEDULER_SESSION_HINTS_H_

#include "engine/kv/managers/kv_context.h"
#include "engine/kv/session_store.h"
#include "engine/kv/store/prefix_index.h"

namespace kvtwin {

class SessionHints {
 public:
  // Both must outlive it.
  SessionHints(KvContext* context, PrefixIndex* prefixes)
      : context_(*context), prefixes_(*prefixes), memories_(context->axes.identity->session_states_max()) {}

  // A request of the session arrived, or has ended.
  void begin_request(Instant now, SessionId session);
  void end_request(Instant now, SessionId session);
  void hint(Instant now, const SessionHint& event);
  void check_invariants() const { memories_.check_invariants(); }

 private:
  void drop_surplus();

  KvContext& context_;
  PrefixIndex& prefixes_;
  SessionStore memories_;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_SCHEDULER_SESSION_HINTS_H_
