// PageCache is what PageSupply evicts: the cached pages of one pool, which requests may take. The prefix
// index gives them up one by one, the cache of prefix checkpoints as whole checkpoints.

#ifndef KVTWIN_ENGINE_KV_STORE_PAGE_CACHE_H_
#define KVTWIN_ENGINE_KV_STORE_PAGE_CACHE_H_

#include <cstdint>
#include <vector>

#include "engine/base/units.h"

namespace kvtwin {

class PageCache {
 public:
  virtual ~PageCache() = default;
  virtual uint32_t pages_evictable() const = 0;
  // The rank of what is evicted next; a stamp, where PrefixEviction orders by age. REQUIRES:
  // pages_evictable() > 0.
  virtual uint64_t next_eviction_rank() const = 0;
  // Evicts until `count` pages or more are evicted, and appends them, the first to be used first. REQUIRES:
  // pages_evictable() >= count.
  virtual void evict_pages(uint32_t count, std::vector<PageId>* pages) = 0;
  // Of those, pages with a copy on the host.
  virtual uint32_t pages_evictable_copied() const = 0;
  // Evicts and appends what would be offloaded next. REQUIRES: there is such (Offload::kHostHoldsNewer).
  virtual void evict_uncopied(std::vector<PageId>* pages) = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_STORE_PAGE_CACHE_H_
