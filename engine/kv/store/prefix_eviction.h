// PrefixEviction ranks cached prefixes: the prefix with the lowest rank loses its pages first.
// prefix_eviction_<name>.cc has one order each, and says where it comes from.
//
// A rank is computed when a leaf becomes evictable and when its inputs change.
// docs/guides/add-an-eviction-order.md adds an order.

#ifndef KVTWIN_ENGINE_KV_STORE_PREFIX_EVICTION_H_
#define KVTWIN_ENGINE_KV_STORE_PREFIX_EVICTION_H_

#include <algorithm>
#include <cstdint>
#include <memory>

#include "engine/base/units.h"

namespace kvtwin {

// The highest need among the sessions that used a prefix: kNo (the session has ended, is overdue, or has sent
// no hint), kExpected (its next request is expected), kHere (it has a request on this engine).
enum class Awaited : uint8_t { kNo, kExpected, kHere };

// A session waits for its client, which has announced another request.
struct SessionPause {
  uint32_t tool = 0;    // SessionHint::tool
  Duration expected{};  // SessionHint::expected_gap, at least 0
};

struct PrefixUse {
  uint64_t stamp = 0;         // of the last use; increases with every use and is unique per path
  uint32_t uses = 0;          // times that the prefix, or one below it, was released after use
  uint32_t pages_before = 0;  // pages of the path above
  uint32_t pages = 0;         // its own pages
  uint64_t floor = 0;         // PrefixEviction::floor() at the last use
  Awaited awaited = Awaited::kNo;
};

// Awaited prefixes last, each group by age. The two highest bits are `awaited`; below them is the stamp of
// the last use: 2^62 uses before it overflows.
constexpr uint64_t rank_by_need(const PrefixUse& use) {
  return static_cast<uint64_t>(use.awaited) << 62 | (use.stamp & ((uint64_t{1} << 62) - 1));
}

// Pauses vary about as much as their mean. A session is given up when it is overdue by as long as its
// expected pause, and by at least a minute.
constexpr Duration kPatience{60'000'000'000};

class PrefixEviction {
 public:
  virtual ~PrefixEviction() = default;
  virtual uint64_t rank(const PrefixUse& use) const = 0;
  // Whether rank() reads `awaited`. If false, sessions are not tracked.
  virtual bool needs_sessions() const { return false; }
  // How long a session that pauses is kExpected; afterwards it is kNo until its next request.
  virtual Duration patience(const SessionPause& pause) const {
    return pause.expected + std::max(pause.expected, kPatience);
  }
  // The session's next request has come, `lasted` after the announcement.
  virtual void resumed(const SessionPause& pause, Duration lasted) { (void)pause, (void)lasted; }
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
  Duration refill{};  // CoreConfig::eviction_refill
};

std::unique_ptr<PrefixEviction> make_lru_eviction(const EvictionSpec& spec = {});
std::unique_ptr<PrefixEviction> make_lfu_eviction(const EvictionSpec& spec = {});
std::unique_ptr<PrefixEviction> make_session_aware_eviction(const EvictionSpec& spec = {});
std::unique_ptr<PrefixEviction> make_cost_aware_eviction(const EvictionSpec& spec = {});
std::unique_ptr<PrefixEviction> make_tool_ttl_eviction(const EvictionSpec& spec = {});

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_STORE_PREFIX_EVICTION_H_
