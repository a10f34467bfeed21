// PageSupply gives requests the pages of one pool: free ones, and those of cached prefixes, which it evicts.
// A request may take the pages that are free or evictable, without those reserved for others. Free pages go
// first, or what is oldest (page_order.h).
//
// Invariant, verified by check_invariants(): reserved pages are free or evictable.

#ifndef KVTWIN_ENGINE_KV_STORE_PAGE_SUPPLY_H_
#define KVTWIN_ENGINE_KV_STORE_PAGE_SUPPLY_H_

#include <cstdint>
#include <vector>

#include "engine/kv/page_pool.h"
#include "engine/kv/reservations.h"
#include "engine/kv/store/prefix_index.h"

namespace kvtwin {

class PageSupply {
 public:
  // `cache` holds pages of the pool that can be evicted; null: there are none. `stamps` numbers releases.
  // *evicted is set when cached pages are lost. All must outlive this.
  PageSupply(PagePool* pool, PageCache* cache, PrefixIndex* stamps, PageOrder order, uint32_t evict_batch,
             bool* evicted)
      : pool_(*pool),
        cache_(cache),
        stamps_(*stamps),
        oldest_first_(order == PageOrder::kOldestFirst),
        evict_batch_(evict_batch),
        evicted_(*evicted) {}

  uint32_t pages_free() const { return pool_.pages_free(); }
  uint32_t pages_evictable() const { return cache_ == nullptr ? 0 : cache_->pages_evictable(); }
  // Pages that the owner of `own` may take.
  uint32_t available(const Reservation& own) const {
    const uint64_t had = uint64_t{pool_.pages_free()} + pages_evictable();
    const uint64_t others = reservations_.of_others(own);
    return static_cast<uint32_t>(had > others ? had - others : 0);
  }
  // Whether take() would return a free page.
  bool free_page_is_next() const {
    if (pool_.pages_free() == 0) return false;
    return !oldest_first_ || pages_evictable() == 0 || pool_.oldest_stamp() <= cache_->next_eviction_rank();
  }

  // `more`: pages needed now, this one included. REQUIRES: that many are free or evictable.
  PageId take(uint32_t more);
  // Evicts at least `more` pages, as far as they are evictable. Does nothing where the oldest page goes
  // first.
  void make_room(uint32_t more);
  // Appends `count` pages. REQUIRES: that many are free or evictable.
  void take(uint32_t count, std::vector<PageId>* pages) {
    for (uint32_t left = count; left > 0; --left) pages->push_back(take(left));
  }
  void free(PageId page) { pool_.release(page, stamps_.tick()); }
  // Takes a page ahead; roll_back() undoes it exactly, newest first. REQUIRES: a page is free.
  PageId take_free() { return pool_.acquire(); }
  void roll_back(PageId page) { pool_.roll_back(page); }

  Reservations& reservations() { return reservations_; }
  const Reservations& reservations() const { return reservations_; }
  // `promised`: the sum over requests.
  void check_invariants(uint64_t promised) const;

 private:
  PagePool& pool_;
  PageCache* const cache_;
  PrefixIndex& stamps_;
  const bool oldest_first_;
  const uint32_t evict_batch_;
  bool& evicted_;
  Reservations reservations_;
  std::vector<PageId> spare_;  // scratch
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_STORE_PAGE_SUPPLY_H_
