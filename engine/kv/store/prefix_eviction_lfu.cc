// lfu: the prefix that was used least often goes first; ties by age.

#include <algorithm>

#include "engine/kv/store/prefix_eviction.h"

namespace kvtwin {
namespace {

// Fewest uses first, then the least recent. Uses saturate at 2^16 - 1, so that 48 bits remain for the stamp:
// 281 T uses before it overflows.
class Lfu final : public PrefixEviction {
 public:
  uint64_t rank(const PrefixUse& use) const override {
    return uint64_t{std::min<uint32_t>(use.uses, 0xffff)} << 48 | (use.stamp & 0xffff'ffff'ffff);
  }
};

}  // namespace

std::unique_ptr<PrefixEviction> make_lfu_eviction(const EvictionSpec&) { return std::make_unique<Lfu>(); }

}  // namespace kvtwin
