// PageTiers are the pages of one engine: a pool for each tier, and the index and the cache that share cached
// pages among requests. It owns none of them.

#ifndef KVTWIN_ENGINE_KV_STORE_PAGE_TIERS_H_
#define KVTWIN_ENGINE_KV_STORE_PAGE_TIERS_H_

#include "engine/kv/page_pool.h"
#include "engine/kv/store/prefix_index.h"

namespace kvtwin {

struct PageTiers {
  PagePool* gpu = nullptr;
  PagePool* host = nullptr;  // null: there is no such tier
  PagePool* disk = nullptr;
  PrefixIndex* index = nullptr;
  PageCache* cache = nullptr;  // what the index holds; the index itself, unless its pages stand for several
  const GpuRoom* room = nullptr;  // the cache, unless pages have two formats
  HoldWatch* watch = nullptr;     // the index's; is notified of freed GPU pages; null: none

  void free_gpu(PageId page) const {
    if (watch != nullptr) watch->freed(page);
    gpu->release(page, index->tick());
  }
  void free_host(PageId page) const { host->release(page, index->tick()); }
  // Drops the oldest copies until `pages` pages of the host tier are free; false: that is impossible.
  bool free_host_pages(uint32_t pages) const {
    if (host == nullptr || host->pages_total() < pages) return false;
    while (host->pages_free() < pages && index->drop_oldest_copy()) continue;
    return host->pages_free() >= pages;
  }
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_STORE_PAGE_TIERS_H_
