#include "engine/kv/store/prefix_eviction.h"

namespace kvtwin {
namespace {

// The two highest bits are `awaited`; below them is LRU's stamp: 2^62 uses before it overflows. The expected
// time of the next request is not used: a session that returns soon may still queue for long, and pauses vary
// too much for their mean to order sessions.
class SessionAware final : public PrefixEviction {
 public:
  uint64_t rank(const PrefixUse& use) const override {
    return static_cast<uint64_t>(use.awaited) << 62 | (use.stamp & ((uint64_t{1} << 62) - 1));
  }
  bool needs_sessions() const override { return true; }
};

}  // namespace

std::unique_ptr<PrefixEviction> make_session_aware_eviction(const EvictionSpec&) {
  return std::make_unique<SessionAware>();
}

}  // namespace kvtwin
