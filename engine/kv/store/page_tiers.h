// PageTiers are the pages of one engine: a pool for each tier, and the index that shares cached pages among
// requests. It owns none of them.

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
  HoldWatch* watch = nullptr;  // is notified of freed GPU pages; null: none

  void free_gpu(PageId page) const {
    if (watch != nullptr) watch->freed(page);
    gpu->release(page, index->tick());
  }
  void free_host(PageId page) const { host->release(page, index->tick()); }
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_STORE_PAGE_TIERS_H_
