// SessionStore says whose session state (IntentKV's query memory, docs/design/methods/intentkv.md#objects)
// the backend keeps: that of the `capacity` sessions used last. Sessions with a request under way are never
// dropped, so there may be more.
//
// The state itself belongs to the backend; DropSessionState tells it whose is gone. A session that comes back
// starts afresh.

#ifndef KVTWIN_ENGINE_KV_SESSION_STORE_H_
#define KVTWIN_ENGINE_KV_SESSION_STORE_H_

#include <cstdint>
#include <vector>

#include "engine/base/units.h"

namespace kvtwin {

class SessionStore {
 public:
  // capacity 0: nothing is kept, and nothing happens here.
  explicit SessionStore(uint32_t capacity) : capacity_(capacity) {}

  // A request of the session begins | has ended. The latter counts as use. O(1).
  void begin(SessionId session);
  void end(SessionId session);
  // The session is over: nothing of it is kept. Whether anything was.
  bool forget(SessionId session);
  // The session whose state must go next; false: none must.
  bool take_surplus(SessionId* session);

  uint32_t retained() const { return retained_; }
  bool keeps(SessionId session) const {
    return raw(session) < entries_.size() && entries_[raw(session)].retained;
  }
  void check_invariants() const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  // Idle sessions form a list, the one used longest ago first.
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
