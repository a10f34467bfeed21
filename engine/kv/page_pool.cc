#include "engine/kv/page_pool.h"

#include <algorithm>
#include <bit>

#include "engine/base/check.h"

namespace kvtwin {

PagePool::PagePool(PageId first, uint32_t pages_total, PageOrder order)
    : first_(raw(first)),
      pages_total_(pages_total),
      order_(order),
      pages_free_(pages_total),
      owned_(pages_total, false) {
  if (order_ == PageOrder::kLowestFirst) {
    uint32_t bits = pages_total;
    do {
      const uint32_t words = div_ceil(std::max(bits, 1u), 64u);
      std::vector<uint64_t> level(words, ~uint64_t{0});
      if (bits % 64 != 0) level.back() = (uint64_t{1} << (bits % 64)) - 1;
      if (bits == 0) level.back() = 0;
      levels_.push_back(std::move(level));
      bits = words;
    } while (bits > 1);
  } else {
    next_.resize(pages_total);
    stamps_.resize(pages_total, 0);
    for (uint32_t i = 0; i < pages_total; ++i) next_[i] = i + 1 < pages_total ? i + 1 : kNone;
    if (pages_total > 0) {
      oldest_ = 0;
      newest_ = pages_total - 1;
    }
  }
}

PageId PagePool::acquire() {
  KVT_CHECK(pages_free_ > 0);
  uint32_t index;
  if (order_ == PageOrder::kLowestFirst) {
    index = lowest_free();
    clear_free_bit(index);
  } else {
    index = oldest_;
    oldest_ = next_[index];
    if (oldest_ == kNone) newest_ = kNone;
  }
  owned_[index] = true;
  --pages_free_;
  return PageId{first_ + index};
}

uint32_t PagePool::disown(PageId page) {
  const uint32_t index = raw(page) - first_;
  KVT_CHECK(index < pages_total_);
  KVT_CHECK(owned_[index]);
  owned_[index] = false;
  ++pages_free_;
  return index;
}

void PagePool::release(PageId page, uint64_t stamp) {
  const uint32_t index = disown(page);
  if (order_ == PageOrder::kLowestFirst) return set_free_bit(index);
  KVT_CHECK(newest_ == kNone || stamps_[newest_] <= stamp);
  stamps_[index] = stamp;
  next_[index] = kNone;
  if (newest_ == kNone) {
    oldest_ = index;
  } else {
    next_[newest_] = index;
  }
  newest_ = index;
}

void PagePool::roll_back(PageId page) {
  const uint32_t index = disown(page);
  if (order_ == PageOrder::kLowestFirst) return set_free_bit(index);
  next_[index] = oldest_;
  oldest_ = index;
  if (newest_ == kNone) newest_ = index;
}

uint64_t PagePool::oldest_stamp() const {
  KVT_CHECK(pages_free_ > 0);
  return order_ == PageOrder::kOldestFirst ? stamps_[oldest_] : 0;
}

void PagePool::set_free_bit(uint32_t index) {
  for (std::vector<uint64_t>& level : levels_) {
    uint64_t& word = level[index / 64];
    const bool was_empty = word == 0;
    word |= uint64_t{1} << (index % 64);
    if (!was_empty) return;
    index /= 64;
  }
}

void PagePool::clear_free_bit(uint32_t index) {
  for (std::vector<uint64_t>& level : levels_) {
    uint64_t& word = level[index / 64];
    word &= ~(uint64_t{1} << (index % 64));
    if (word != 0) return;
    index /= 64;
  }
}

uint32_t PagePool::lowest_free() const {
  uint32_t index = 0;
  for (auto level = levels_.rbegin(); level != levels_.rend(); ++level) {
    index = index * 64 + static_cast<uint32_t>(std::countr_zero((*level)[index]));
  }
  return index;
}

void PagePool::check_invariants() const {
  const auto owned = static_cast<uint32_t>(std::count(owned_.begin(), owned_.end(), true));
  KVT_CHECK(owned + pages_free_ == pages_total_);
  if (order_ != PageOrder::kOldestFirst) return;
  uint32_t listed = 0;
  for (uint32_t i = oldest_; i != kNone; i = next_[i]) {
    KVT_CHECK(!owned_[i]);
    ++listed;
  }
  KVT_CHECK(listed == pages_free_);
}

}  // namespace kvtwin
