// PrefixEviction ranks cached prefixes: the lowest rank loses its pages first.
//
// A rank is computed when a leaf becomes evictable and stays until it is used again. To add one: a
// prefix_eviction_<name>.cc, a line in registry.cc, a table test.

#ifndef KVTWIN_ENGINE_POLICY_PREFIX_EVICTION_H_
#define KVTWIN_ENGINE_POLICY_PREFIX_EVICTION_H_

#include <cstdint>
#include <memory>

namespace kvtwin {

struct PrefixUse {
  uint64_t stamp = 0;  // of the last use: grows with every use of anything, never equal to another path's
  uint32_t uses = 0;   // times it was let go after use, itself or something below it
  uint32_t tokens_before = 0;  // of prefix above
};

class PrefixEviction {
 public:
  virtual ~PrefixEviction() = default;
  virtual uint64_t rank(const PrefixUse& use) const = 0;
};

std::unique_ptr<PrefixEviction> make_lru_eviction();
std::unique_ptr<PrefixEviction> make_lfu_eviction();

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_POLICY_PREFIX_EVICTION_H_
