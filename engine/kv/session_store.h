// SessionStore decides which sessions' state (IntentKV's query memory,
// docs/design/methods/intentkv.md#objects) the backend retains: that of the `capacity` sessions used last. A
// session with a request in progress is never dropped, so there may be more.
//
// The state itself belongs to the backend; DropSessionState tells it to free the state of a session. A
// session that returns afterwards starts without state.

#ifndef KVTWIN_ENGINE_KV_SESSION_STORE_H_
#define KVTWIN_ENGINE_KV_SESSION_STORE_H_

#include <cstdint>
#include <vector>

#include "engine/base/units.h"

namespace kvtwin {

class SessionStore {
 public:
  // capacity 0: no state is retained, and all functions do nothing.
  explicit SessionStore(uint32_t capacity) : capacity_(capacity) {}

  // A request of the session begins, or has ended. The end counts as use. O(1).
  void begin(SessionId session);
  void end(SessionId session);
  // The session has ended: drops its state. Returns whether it had any.
  bool forget(SessionId session);
  // Returns the next session whose state must be dropped; false: there is none.
  bool take_surplus(SessionId* session);

  uint32_t retained() const { return retained_; }
  bool keeps(SessionId session) const {
    return raw(session) < entries_.size() && entries_[raw(session)].retained;
  }
  void check_invariants() const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  // Idle sessions form a list, least recently used first.
  struct Entry {
    bool retained = false;
    uint32_t requests = 0;
    uint32_t before = kNone, behind = kNone;
  };
  void unlink(uint32_t id);

  const uint32_t capacity_;
  uint32_t retained_ = 0;
  uint32_t oldest_ = kNone, newest_ = kNone;
  std::vector<Entry> entries_;  // by SessionId
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_SESSION_STORE_H_
