// PrefixEviction ranks cached prefixes: the lowest rank loses its pages first.
//
//   lru            let go longest ago
//   lfu            used least often
//   session_aware  first what no session is waited for that used it, then what one is expected to come back
//                  for, then what a request that is here is about to use; each by age. KVFlow (arXiv
//                  2507.07400) keeps agents' KV by how many steps of a known workflow are left; here it is
//                  the client's word alone (events.h, SessionHint), the mean of the session's pauses so far.
//   cost_aware     GreedyMixedPrecision-Size-Frequency (L. Cherkasova, HPL-98-69R1, 1998): rank = floor +
//   uses x cost /
//                  size, the floor being the highest rank that was ever evicted, as it was at the last use.
//                  Cost over size is the work of computing one token again, which grows with what stands
//                  before it.
//
// A rank is computed when a leaf becomes evictable and when what it depends on changes. To add one: a
// prefix_eviction_<name>.cc, a line in registry.cc, a table test.

#ifndef KVTWIN_ENGINE_KV_PREFIX_EVICTION_H_
#define KVTWIN_ENGINE_KV_PREFIX_EVICTION_H_

#include <cstdint>
#include <memory>

#include "engine/base/units.h"

namespace kvtwin {

// Of the sessions that used a prefix, the one that needs it most: has ended, was given up, or nobody said
// anything of it | should come back | has a request here.
enum class Awaited : uint8_t { kNo, kExpected, kHere };

struct PrefixUse {
  uint64_t stamp = 0;  // of the last use: grows with every use of anything, never equal to another path's
  uint32_t uses = 0;   // times it was let go after use, itself or something below it
  uint32_t pages_before = 0;  // of prefix above
  uint32_t pages = 0;         // its own
  uint64_t floor = 0;         // PrefixEviction::floor() at the last use
  Awaited awaited = Awaited::kNo;
};

class PrefixEviction {
 public:
  virtual ~PrefixEviction() = default;
  virtual uint64_t rank(const PrefixUse& use) const = 0;
  // Whether it reads `awaited`: without, nobody keeps an account of sessions.
  virtual bool needs_sessions() const { return false; }
  virtual uint64_t floor() const { return 0; }
  // A page of this rank has gone.
  virtual void evicted(uint64_t rank) { (void)rank; }
};

std::unique_ptr<PrefixEviction> make_lru_eviction();
std::unique_ptr<PrefixEviction> make_lfu_eviction();
std::unique_ptr<PrefixEviction> make_session_aware_eviction();
// With doubling_pages of prefix before it, a token takes twice the work of a first one; 0: all take the same.
std::unique_ptr<PrefixEviction> make_cost_aware_eviction(uint32_t doubling_pages);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_PREFIX_EVICTION_H_
