#include "engine/policy/session_store.h"

#include "engine/base/check.h"

namespace kvtwin {

void SessionStore::begin(SessionId session) {
  if (capacity_ == 0) return;
  const uint32_t id = raw(session);
  if (id >= entries_.size()) entries_.resize(size_t{id} + 1);
  Entry& entry = entries_[id];
  if (entry.kept && entry.calls == 0) unlink(id);
  kept_ += entry.kept ? 0 : 1;
  entry.kept = true;
  ++entry.calls;
}

void SessionStore::end(SessionId session) {
  if (capacity_ == 0) return;
  const uint32_t id = raw(session);
  Entry& entry = entries_[id];
  KVT_CHECK(entry.calls > 0);
  if (--entry.calls > 0 || !entry.kept) return;
  entry.before = newest_;
  entry.behind = kNone;
  (newest_ == kNone ? oldest_ : entries_[newest_].behind) = id;
  newest_ = id;
}

bool SessionStore::forget(SessionId session) {
  if (!keeps(session)) return false;
  Entry& entry = entries_[raw(session)];
  if (entry.calls == 0) unlink(raw(session));
  entry.kept = false;
  --kept_;
  return true;
}

bool SessionStore::take_surplus(SessionId* session) {
  if (kept_ <= capacity_ || oldest_ == kNone) return false;
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
  uint32_t kept = 0, idle = 0, listed = 0;
  for (const Entry& entry : entries_) {
    kept += entry.kept ? 1 : 0;
    idle += entry.kept && entry.calls == 0 ? 1 : 0;
  }
  for (uint32_t id = oldest_; id != kNone; id = entries_[id].behind) ++listed;
  KVT_CHECK(kept == kept_);
  KVT_CHECK(idle == listed);
}

}  // namespace kvtwin
