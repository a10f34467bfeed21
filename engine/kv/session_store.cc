#include "engine/kv/session_store.h"

#include "engine/base/check.h"

namespace kvtwin {

void SessionStore::begin(SessionId session) {
  if (capacity_ == 0) return;
  const uint32_t id = raw(session);
  if (id >= entries_.size()) entries_.resize(size_t{id} + 1);
  Entry& entry = entries_[id];
  if (entry.retained && entry.requests == 0) unlink(id);
  retained_ += entry.retained ? 0 : 1;
  entry.retained = true;
  ++entry.requests;
}

void SessionStore::end(SessionId session) {
  if (capacity_ == 0) return;
  const uint32_t id = raw(session);
  Entry& entry = entries_[id];
  KVT_CHECK(entry.requests > 0);
  if (--entry.requests > 0 || !entry.retained) return;
  entry.before = newest_;
  entry.behind = kNone;
  (newest_ == kNone ? oldest_ : entries_[newest_].behind) = id;
  newest_ = id;
}

bool SessionStore::forget(SessionId session) {
  if (!keeps(session)) return false;
  Entry& entry = entries_[raw(session)];
  if (entry.requests == 0) unlink(raw(session));
  entry.retained = false;
  --retained_;
  return true;
}

bool SessionStore::take_surplus(SessionId* session) {
  if (retained_ <= capacity_ || oldest_ == kNone) return false;
  *session = SessionId{oldest_};
  return forget(*session);
}

void SessionStore::unlink(uint32_t id) {
  Entry& entry = entries_[id];
  (entry.before == kNone ? oldest_ : entries_[entry.before].behind) = entry.behind;
  (entry.behind == kNone ? newest_ : entries_[entry.behind].before) = entry.before;
  entry.before = entry.behind = kNone;
}

void SessionStore::check_invariants() const {
  uint32_t retained = 0, idle = 0, listed = 0;
  for (const Entry& entry : entries_) {
    retained += entry.retained ? 1 : 0;
    idle += entry.retained && entry.requests == 0 ? 1 : 0;
  }
  for (uint32_t id = oldest_; id != kNone; id = entries_[id].behind) ++listed;
  KVT_CHECK(retained == retained_);
  KVT_CHECK(idle == listed);
}

}  // namespace kvtwin
