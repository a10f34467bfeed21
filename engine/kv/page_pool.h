// PagePool allocates the KV pages of one tier.
//
// The order is part of the contract, because two runs that free the same pages in a different order must
// still allocate the same ones:
//   kLowestFirst  the free page with the lowest number;
//   kOldestFirst  the page that has been free for longest. Each freed page carries the stamp of its
//                 release, so that the caller can compare it with cached pages (vLLM keeps both in one
//                 queue).
// roll_back() undoes allocations exactly, newest first.
//
// Invariants, verified by check_invariants():
//   (1) every page is either free or owned, never both;
//   (2) pages_free() + pages_owned() == pages_total().

#ifndef KVTWIN_ENGINE_KV_PAGE_POOL_H_
#define KVTWIN_ENGINE_KV_PAGE_POOL_H_

#include <cstdint>
#include <vector>

#include "engine/base/units.h"
#include "engine/kv/page_order.h"

namespace kvtwin {

class PagePool {
 public:
  // Pages are numbered [first, first + pages_total).
  PagePool(PageId first, uint32_t pages_total, PageOrder order);

  // REQUIRES: pages_free() > 0.
  PageId acquire();
  // Frees a page. REQUIRES: it is owned. `stamp` must not decrease (kOldestFirst).
  void release(PageId page, uint64_t stamp);
  // Frees a page that was released before all free ones, in a cache. REQUIRES: it is owned; `stamp` is at
  // most oldest_stamp(), if a page is free; kOldestFirst.
  void release_oldest(PageId page, uint64_t stamp);
  // Undoes the last acquire() that is not undone yet. REQUIRES: `page` is its result, and no page was
  // acquired or released since.
  void roll_back(PageId page);
  // The stamp of the page that acquire() would return. REQUIRES: pages_free() > 0.
  uint64_t oldest_stamp() const;

  uint32_t pages_total() const { return pages_total_; }
  uint32_t pages_free() const { return pages_free_; }
  uint32_t pages_owned() const { return pages_total_ - pages_free_; }
  bool has(PageId page) const { return raw(page) - first_ < pages_total_; }
  bool owned(PageId page) const { return is_owned(raw(page) - first_); }
  void check_invariants() const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  // Whether the order is that of page numbers.
  bool by_number() const { return order_ == PageOrder::kLowestFirst; }
  bool is_owned(uint32_t index) const {
    return by_number() ? (free_[index / 64] >> (index % 64) & 1) == 0 : owned_[index];
  }
  // Checks that the page is owned, and counts it as free. The caller inserts it into the order of free pages.
  uint32_t disown(PageId page);
  void set_free_bit(uint32_t index);
  uint32_t take_lowest();
  void find_lowest_word();

  const uint32_t first_;
  const uint32_t pages_total_;
  const PageOrder order_;
  uint32_t pages_free_;
  // kLowestFirst: bit i of free_ is set if page i is free. Bit i of the first level above is set if word i of
  // free_ is not zero, and so on. Three levels above cover 16 M pages.
  std::vector<uint64_t> free_;
  std::vector<std::vector<uint64_t>> above_;
  uint32_t lowest_word_ = 0;  // of free_ that is not zero, if a page is free
  // kOldestFirst: a linked list of the free pages.
  std::vector<bool> owned_;
  std::vector<uint32_t> next_;
  std::vector<uint64_t> stamps_;
  uint32_t oldest_ = kNone;
  uint32_t newest_ = kNone;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_PAGE_POOL_H_
