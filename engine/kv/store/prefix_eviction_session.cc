// session_aware: first go prefixes that no awaited session has used, then those of a session whose next
// request is expected, then those of a request that is present; each by age. KVFlow (arXiv 2507.07400) ranks
// agents' KV by the remaining steps of a known workflow; here only the client's hint is used (events.h,
// SessionHint), the mean of the session's pauses so far.

#include "engine/kv/store/prefix_eviction.h"

namespace kvtwin {
namespace {

// The expected time of the next request is not used: a session that returns soon may still queue for long,
// and pauses vary too much for their mean to order sessions.
class SessionAware final : public PrefixEviction {
 public:
  uint64_t rank(const PrefixUse& use) const override { return rank_by_need(use); }
  bool needs_sessions() const override { return true; }
};

}  // namespace

std::unique_ptr<PrefixEviction> make_session_aware_eviction(const EvictionSpec&) {
  return std::make_unique<SessionAware>();
}

}  // namespace kvtwin
