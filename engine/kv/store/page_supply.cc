#include "engine/kv/store/page_supply.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin {

PageId PageSupply::take(uint32_t more) {
  if (free_page_is_next()) return pool_.acquire();
  if (!oldest_first_) {
    make_room(more);
    return pool_.acquire();
  }
  // All that is evicted at once is older than every free page.
  const uint64_t rank = cache_->next_eviction_rank();
  evicted_ = true;
  spare_.clear();
  cache_->evict_pages(1, &spare_);
  for (auto page = spare_.rbegin(); page != spare_.rend(); ++page) pool_.release_oldest(*page, rank);
  return pool_.acquire();
}

void PageSupply::make_room(uint32_t more) {
  if (cache_ == nullptr || oldest_first_) return;
  evicted_ = true;
  spare_.clear();
  cache_->evict_pages(std::min(pages_evictable(), std::max(more, evict_batch_)), &spare_);
  for (const PageId page : spare_) free(page);
}

void PageSupply::check_invariants(uint64_t promised) const {
  KVT_CHECK(promised == reservations_.total());
  KVT_CHECK(promised <= uint64_t{pool_.pages_free()} + pages_evictable());
}

}  // namespace kvtwin
