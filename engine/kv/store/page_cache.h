// PageCache is what PageSupply evicts: the cached pages of one pool, which requests may take. The prefix
// index gives them up one by one, the cache of prefix checkpoints as whole checkpoints.

#ifndef KVTWIN_ENGINE_KV_STORE_PAGE_CACHE_H_
#define KVTWIN_ENGINE_KV_STORE_PAGE_CACHE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/units.h"

namespace kvtwin {

// The pages of the GPU, of one format or two, as copies of prefixes depend on them.
class GpuRoom {
 public:
  virtual ~GpuRoom() = default;
  // Free pages, and those that can be evicted and have a copy on the host.
  virtual uint32_t pages_spare() const = 0;
  // Whether so many pages of each format are free or can be evicted.
  virtual bool covers(std::span<const uint64_t> reserved) const = 0;
};

class PageCache : public GpuRoom {
 public:
  virtual uint32_t pages_evictable() const = 0;
  // The rank of what is evicted next; a stamp, where PrefixEviction orders by age. REQUIRES:
  // pages_evictable() > 0.
  virtual uint64_t next_eviction_rank() const = 0;
  // Evicts until `count` pages or more are evicted, and appends them, the first to be used first. REQUIRES:
  // pages_evictable() >= count.
  virtual void evict_pages(uint32_t count, std::vector<PageId>* pages) = 0;
  // Evicts and appends what would be offloaded next. REQUIRES: there is such (Offload::kHostHoldsNewer).
  virtual void evict_uncopied(std::vector<PageId>* pages) = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_STORE_PAGE_CACHE_H_
