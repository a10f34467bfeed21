// NaivePrefixes does what a PrefixIndex with LRU eviction promises, page by page and without a tree: a map
// from (name space, all units up to and including a page) to the state of that page. It is slow, and short
// enough to be obviously correct.

#ifndef KVTWIN_TESTS_PROPERTY_STRUCTURES_NAIVE_PREFIXES_H_
#define KVTWIN_TESTS_PROPERTY_STRUCTURES_NAIVE_PREFIXES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "engine/base/units.h"

namespace kvtwin::testing {

using Unit = std::pair<uint64_t, uint64_t>;  // (space, number)
using Units = std::vector<Unit>;

class NaivePrefixes {
 public:
  struct Page {
    std::optional<PageId> gpu, host, disk;
    uint32_t locks = 0;
    uint64_t stamp = 0;
    uint32_t dropped_tokens = 0;
  };
  using Key = std::pair<uint64_t, Units>;  // a page, named by everything up to its end

  explicit NaivePrefixes(uint32_t units_per_page) : units_per_page_(units_per_page) {}

  // Returns the number of leading pages of the identity that are known.
  uint32_t match(uint64_t name_space, const Units& units, uint32_t pages_max) const;
  Page& page(uint64_t name_space, const Units& units, uint32_t index);
  bool knows(uint64_t name_space, const Units& units, uint32_t index) const;
  void add(uint64_t name_space, const Units& units, uint32_t index, PageId gpu);
  void lock(uint64_t name_space, const Units& units, uint32_t pages);
  void unlock(uint64_t name_space, const Units& units, uint32_t pages, bool used);
  uint32_t pages_on_gpu(uint64_t name_space, const Units& units, uint32_t pages);

  // The page to evict next: pages with a copy before others, then the least recently used. Only a page that
  // is unprotected and has no successor on the GPU qualifies.
  const Key* next_out(bool has_copy) const;
  const Key* next_out() const { return next_out(true) != nullptr ? next_out(true) : next_out(false); }
  // Evicts it from the GPU. Without a copy it is forgotten together with all its successors.
  PageId evict() { return evict(*next_out()); }
  // Evicts the next of the pages without a copy.
  PageId evict_uncopied() { return evict(*next_out(false)); }

  // The page whose copy is `host`, or null.
  const Key* find_host(PageId host) const;
  bool may_lose_copy(const Key& key) const;
  void lose_copy(const Key& key);

  // True if the page may be spilled next: it is on the host only, unprotected, and has no successor on the
  // host.
  bool may_spill(const Key& key) const;
  // The least recently used of the pages that are not `shielded`.
  const Key* next_spill(const std::function<bool(const Key&)>& shielded) const;
  // The page stored in `disk`, or null.
  const Key* find_disk(PageId disk) const;
  // True if the page may make room for one used at `stamp`: it is unprotected, the last of its path, and not
  // newer.
  bool may_leave_disk(const Key& key, uint64_t stamp) const;
  bool any_may_leave_disk(uint64_t stamp, const std::function<bool(const Key&)>& shielded) const;
  void leave_disk(const Key& key) { pages_.erase(Key(key)); }

  uint32_t count_gpu() const;
  uint32_t count_host() const;
  uint32_t count_disk() const;
  uint32_t count_evictable(bool copied_only) const;

  uint64_t clock = 0;

 private:
  PageId evict(Key key);
  Key key(uint64_t name_space, const Units& units, uint32_t index) const;
  template <typename Visit>
  void each_behind(const Key& key, Visit visit) const;

  const uint32_t units_per_page_;
  std::map<Key, Page> pages_;
};

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_PROPERTY_STRUCTURES_NAIVE_PREFIXES_H_
