#include "engine/kv/store/page_supply.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin {

PageId PageSupply::take(uint32_t more) {
  if (oldest_first_) {
    if (free_page_is_next()) return pool_.acquire();
    evicted_ = true;
    return cache_->evict_gpu_page();
  }
  if (pool_.pages_free() == 0) {
    const uint32_t batch = std::min(pages_evictable(), std::max(more, evict_batch_));
    spare_.clear();
    cache_->evict_gpu_pages(batch, &spare_);
    for (const PageId page : spare_) free(page);
    evicted_ = true;
  }
  return pool_.acquire();
}

void PageSupply::check_invariants(uint64_t promised, uint32_t elsewhere) const {
  KVT_CHECK(promised == reservations_.total());
  KVT_CHECK(promised <= uint64_t{pool_.pages_free()} + pages_evictable() + elsewhere);
}

}  // namespace kvtwin
