// lru: the prefix that was released longest ago goes first.

#include "engine/kv/store/prefix_eviction.h"

namespace kvtwin {
namespace {

// The stamp counts uses and is not a time: with a clock the victim would depend on the speed of the machine,
// and a replay would evict other pages.
class Lru final : public PrefixEviction {
 public:
  uint64_t rank(const PrefixUse& use) const override { return use.stamp; }
};

}  // namespace

std::unique_ptr<PrefixEviction> make_lru_eviction(const EvictionSpec&) { return std::make_unique<Lru>(); }

}  // namespace kvtwin
