#include "engine/policy/prefix_eviction.h"

namespace kvtwin {
namespace {

// Two classes, told apart by the highest bit. What belongs to nobody goes in LRU's order; what is waited for
// goes by when it should be needed, the latest first: Belady's rule on what the client expects. Sessions that
// are expected at the same instant are told apart by the index (IndexedHeap).
class SessionAware final : public PrefixEviction {
 public:
  uint64_t rank(const PrefixUse& use) const override {
    constexpr uint64_t kWaitedFor = uint64_t{1} << 63;
    if (use.back_at == kNever) return use.stamp & (kWaitedFor - 1);
    return kWaitedFor | static_cast<uint64_t>(kNever.ns - use.back_at.ns);
  }
  bool asks_sessions() const override { return true; }
};

}  // namespace

std::unique_ptr<PrefixEviction> make_session_aware_eviction() { return std::make_unique<SessionAware>(); }

}  // namespace kvtwin
