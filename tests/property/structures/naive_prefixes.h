// NaivePrefixes is what a PrefixIndex with LRU eviction promises, page by page and without a tree: a map
// from (name space, all units up to and including a page) to what is known about that page. Slow, and
// short enough to be read and believed.

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
  using Key = std::pair<uint64_t, Units>;  // a page, by everything up to its end

  explicit NaivePrefixes(uint32_t units_per_page) : units_per_page_(units_per_page) {}

  // Pages [0, result) of the identity are known.
  uint32_t match(uint64_t name_space, const Units& units, uint32_t pages_max) const;
  Page& page(uint64_t name_space, const Units& units, uint32_t index);
  bool knows(uint64_t name_space, const Units& units, uint32_t index) const;
  void add(uint64_t name_space, const Units& units, uint32_t index, PageId gpu);
  void lock(uint64_t name_space, const Units& units, uint32_t pages);
  void unlock(uint64_t name_space, const Units& units, uint32_t pages, bool used);
  uint32_t pages_on_gpu(uint64_t name_space, const Units& units, uint32_t pages);

  // The page that goes next: copies exist (clean) before others, then the least recently used. Only a
  // page that nobody protects and behind which nothing is on the gpu may go.
  const Key* next_out(bool has_copy) const;
  const Key* next_out() const { return next_out(true) != nullptr ? next_out(true) : next_out(false); }
  // Takes it off the gpu. Without a copy it is forgotten, with all behind it.
  PageId evict() { return evict(*next_out()); }
  // Takes the one that goes next of those without a copy.
  PageId evict_uncopied() { return evict(*next_out(false)); }

  // The page whose copy is `host`, or null.
  const Key* find_host(PageId host) const;
  bool may_lose_copy(const Key& key) const;
  void lose_copy(const Key& key);

  // May go to the disk next: it is on the host alone, nobody protects it, nothing behind it is on the host.
  bool may_spill(const Key& key) const;
  // The least recently used of those that are not `shielded`.
  const Key* next_spill(const std::function<bool(const Key&)>& shielded) const;
  // The page that lies in `disk`, or null.
  const Key* find_disk(PageId disk) const;
  // It may make room for something used at `stamp`: nobody protects it, it is last, and not newer.
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
