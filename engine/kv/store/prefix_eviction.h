// PrefixEviction ranks cached prefixes: the prefix with the lowest rank loses its pages first.
//
//   lru            released longest ago
//   lfu            used least often
//   session_aware  first prefixes that no awaited session has used, then those of a session whose next
//   request
//                  is expected, then those of a request that is present; each by age. KVFlow (arXiv
//                  2507.07400) ranks agents' KV by the remaining steps of a known workflow; here only the
//                  client's hint is used (events.h, SessionHint), the mean of the session's pauses so far.
//   cost_aware     Greedy-Dual-Size-Frequency (L. Cherkasova, HPL-98-69R1, 1998): rank = floor + uses x cost
//   /
//                  size. The floor is the highest rank that was evicted before the last use. Cost over size
//                  is the work of recomputing one token, which grows with the length of the context before
//                  it.
//
// A rank is computed when a leaf becomes evictable and when its inputs change. To add an order: write
// prefix_eviction_<name>.cc, a row in engine/methods/axis_eviction.cc, and a table test.

#ifndef KVTWIN_ENGINE_KV_STORE_PREFIX_EVICTION_H_
#define KVTWIN_ENGINE_KV_STORE_PREFIX_EVICTION_H_

#include <cstdint>
#include <memory>

#include "engine/base/units.h"

namespace kvtwin {

// The highest need among the sessions that used a prefix: kNo (the session has ended, is overdue, or has sent
// no hint), kExpected (its next request is expected), kHere (it has a request on this engine).
enum class Awaited : uint8_t { kNo, kExpected, kHere };

struct PrefixUse {
  uint64_t stamp = 0;         // of the last use; increases with every use and is unique per path
  uint32_t uses = 0;          // times that the prefix, or one below it, was released after use
  uint32_t pages_before = 0;  // pages of the path above
  uint32_t pages = 0;         // its own pages
  uint64_t floor = 0;         // PrefixEviction::floor() at the last use
  Awaited awaited = Awaited::kNo;
};

class PrefixEviction {
 public:
  virtual ~PrefixEviction() = default;
  virtual uint64_t rank(const PrefixUse& use) const = 0;
  // Whether rank() reads `awaited`. If false, sessions are not tracked.
  virtual bool needs_sessions() const { return false; }
  // Whether rank() changes while a prefix loses pages from its end.
  virtual bool reads_length() const { return false; }
  virtual uint64_t floor() const { return 0; }
  // A page of this rank was evicted.
  virtual void evicted(uint64_t rank) { (void)rank; }
};

// What orders may read of the engine's configuration.
struct EvictionSpec {
  // A token after so many pages of prefix takes twice the work of the first token; 0: all take the same.
  uint32_t doubling_pages = 0;
};

std::unique_ptr<PrefixEviction> make_lru_eviction(const EvictionSpec& spec = {});
std::unique_ptr<PrefixEviction> make_lfu_eviction(const EvictionSpec& spec = {});
std::unique_ptr<PrefixEviction> make_session_aware_eviction(const EvictionSpec& spec = {});
std::unique_ptr<PrefixEviction> make_cost_aware_eviction(const EvictionSpec& spec = {});

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_STORE_PREFIX_EVICTION_H_
