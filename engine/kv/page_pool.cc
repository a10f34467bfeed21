#include "engine/kv/page_pool.h"

#include <algorithm>
#include <bit>

#include "engine/base/check.h"

namespace kvtwin {

PagePool::PagePool(PageId first, uint32_t pages_total, PageOrder order)
    : first_(raw(first)), pages_total_(pages_total), order_(order), pages_free_(pages_total) {
  if (by_number()) {
    const auto all_set = [](uint32_t bits) {
      std::vector<uint64_t> words(div_ceil(std::max(bits, 1u), 64u), ~uint64_t{0});
      if (bits % 64 != 0 || bits == 0) words.back() = (uint64_t{1} << (bits % 64)) - 1;
      return words;
    };
    free_ = all_set(pages_total);
    for (auto words = static_cast<uint32_t>(free_.size()); words > 1; words = div_ceil(words, 64u))
      above_.push_back(all_set(words));
  } else {
    owned_.resize(pages_total, false);
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
  --pages_free_;
  if (by_number()) return PageId{first_ + take_lowest()};
  const uint32_t index = oldest_;
  oldest_ = next_[index];
  if (oldest_ == kNone) newest_ = kNone;
  owned_[index] = true;
  return PageId{first_ + index};
}

uint32_t PagePool::disown(PageId page) {
  const uint32_t index = raw(page) - first_;
  KVT_CHECK(index < pages_total_);
  KVT_CHECK(is_owned(index));
  ++pages_free_;
  return index;
}

void PagePool::release(PageId page, uint64_t stamp) {
  const uint32_t index = disown(page);
  if (by_number()) return set_free_bit(index);
  owned_[index] = false;
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

void PagePool::release_oldest(PageId page, uint64_t stamp) {
  KVT_CHECK(!by_number() && (oldest_ == kNone || stamp <= stamps_[oldest_]));
  roll_back(page);
  stamps_[raw(page) - first_] = stamp;
}

void PagePool::roll_back(PageId page) {
  const uint32_t index = disown(page);
  if (by_number()) return set_free_bit(index);
  owned_[index] = false;
  next_[index] = oldest_;
  oldest_ = index;
  if (newest_ == kNone) newest_ = index;
}

uint64_t PagePool::oldest_stamp() const {
  KVT_CHECK(pages_free_ > 0);
  return by_number() ? 0 : stamps_[oldest_];
}

void PagePool::set_free_bit(uint32_t index) {
  uint32_t word = index / 64;
  const bool was_empty = free_[word] == 0;
  free_[word] |= uint64_t{1} << (index % 64);
  if (word < lowest_word_ || pages_free_ == 1) lowest_word_ = word;
  if (!was_empty) return;
  for (std::vector<uint64_t>& level : above_) {
    const uint64_t bit = uint64_t{1} << (word % 64);
    word /= 64;
    const bool had_others = level[word] != 0;
    level[word] |= bit;
    if (had_others) return;
  }
}

// REQUIRES: a page is free.
uint32_t PagePool::take_lowest() {
  const uint32_t word = lowest_word_;
  const uint32_t index = word * 64 + static_cast<uint32_t>(std::countr_zero(free_[word]));
  free_[word] &= free_[word] - 1;
  if (free_[word] != 0) return index;
  uint32_t empty = word;
  for (std::vector<uint64_t>& level : above_) {
    level[empty / 64] &= ~(uint64_t{1} << (empty % 64));
    if (level[empty / 64] != 0) break;
    empty /= 64;
  }
  find_lowest_word();
  return index;
}

void PagePool::find_lowest_word() {
  if (pages_free_ == 0) return;
  uint32_t index = 0;
  for (auto level = above_.rbegin(); level != above_.rend(); ++level) {
    index = index * 64 + static_cast<uint32_t>(std::countr_zero((*level)[index]));
  }
  lowest_word_ = index;
}

void PagePool::check_invariants() const {
  uint32_t owned = 0;
  for (uint32_t i = 0; i < pages_total_; ++i) owned += is_owned(i) ? 1 : 0;
  KVT_CHECK(owned + pages_free_ == pages_total_);
  if (by_number()) {
    for (uint32_t word = 0; word < lowest_word_ && pages_free_ > 0; ++word) KVT_CHECK(free_[word] == 0);
    KVT_CHECK(pages_free_ == 0 || free_[lowest_word_] != 0);
    return;
  }
  uint32_t listed = 0;
  for (uint32_t i = oldest_; i != kNone; i = next_[i]) {
    KVT_CHECK(!owned_[i]);
    ++listed;
  }
  KVT_CHECK(listed == pages_free_);
}

}  // namespace kvtwin
