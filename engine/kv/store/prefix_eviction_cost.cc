// cost_aware: Greedy-Dual-Size-Frequency (L. Cherkasova, HPL-98-69R1, 1998): rank = floor + uses x cost /
// size. The floor is the highest rank that was evicted before the last use. Cost over size is the work of
// recomputing one token, which grows with the length of the context before it.

#include <algorithm>

#include "engine/kv/store/prefix_eviction.h"

namespace kvtwin {
namespace {

// Work is counted in 1/1024 of that of a first token. The tokens of a node take on average the work of the
// one in its middle, because work per token is linear in its context (matrix products are constant, attention
// grows). The floor ages old uses: a prefix that is used now ranks above everything evicted before.
class CostAware final : public PrefixEviction {
 public:
  explicit CostAware(uint32_t doubling_pages) : doubling_(doubling_pages) {}

  bool reads_length() const override { return true; }
  uint64_t rank(const PrefixUse& use) const override {
    const uint64_t uses = std::clamp<uint32_t>(use.uses, 1, 0xffff);
    const uint64_t middle = uint64_t{use.pages_before} + use.pages / 2;
    const uint64_t work = kUnit + (doubling_ > 0 ? middle * kUnit / doubling_ : 0);
    return std::min(use.floor, kFloorMax) + uses * work;
  }
  uint64_t floor() const override { return floor_; }
  void evicted(uint64_t rank) override { floor_ = std::max(floor_, rank); }

 private:
  // uses * work < 2^16 * 2^43, so the sum below fits into 64 bits.
  static constexpr uint64_t kUnit = 1024, kFloorMax = uint64_t{1} << 62;
  const uint32_t doubling_;
  uint64_t floor_ = 0;
};

}  // namespace

std::unique_ptr<PrefixEviction> make_cost_aware_eviction(const EvictionSpec& spec) {
  return std::make_unique<CostAware>(spec.doubling_pages);
}

}  // namespace kvtwin
