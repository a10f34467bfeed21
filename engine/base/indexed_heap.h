// IndexedHeap is a min-heap of small integers, each with a rank; ties go to the lower integer. An item can be
// removed or re-ranked in place, in O(log n). It allocates only to grow.

#ifndef KVTWIN_ENGINE_BASE_INDEXED_HEAP_H_
#define KVTWIN_ENGINE_BASE_INDEXED_HEAP_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/base/check.h"

namespace kvtwin {

class IndexedHeap {
 public:
  bool empty() const { return heap_.empty(); }
  size_t size() const { return heap_.size(); }
  bool contains(uint32_t item) const { return item < place_.size() && place_[item] != kNowhere; }
  uint32_t top() const { return heap_.front().item; }
  uint64_t top_rank() const { return heap_.front().rank; }

  // Adds `item`, or changes its rank.
  void set(uint32_t item, uint64_t rank) {
    if (item >= place_.size()) place_.resize(item + 1, kNowhere);
    if (place_[item] == kNowhere) {
      place_[item] = static_cast<uint32_t>(heap_.size());
      heap_.push_back({rank, item});
    } else if (heap_[place_[item]].rank == rank) {
      return;
    } else {
      heap_[place_[item]].rank = rank;
    }
    sift_down(sift_up(place_[item]));
  }

  void remove(uint32_t item) {
    if (!contains(item)) return;
    const uint32_t hole = place_[item];
    place_[item] = kNowhere;
    const Entry last = heap_.back();
    heap_.pop_back();
    if (last.item == item) return;
    heap_[hole] = last;
    place_[last.item] = hole;
    sift_down(sift_up(hole));
  }

 private:
  static constexpr uint32_t kNowhere = UINT32_MAX;
  struct Entry {
    uint64_t rank;
    uint32_t item;
    friend bool operator<(const Entry& a, const Entry& b) {
      return a.rank != b.rank ? a.rank < b.rank : a.item < b.item;
    }
  };

  void exchange(uint32_t a, uint32_t b) {
    std::swap(heap_[a], heap_[b]);
    place_[heap_[a].item] = a;
    place_[heap_[b].item] = b;
  }

  uint32_t sift_up(uint32_t at) {
    for (; at > 0 && heap_[at] < heap_[(at - 1) / 2]; at = (at - 1) / 2) exchange(at, (at - 1) / 2);
    return at;
  }

  void sift_down(uint32_t at) {
    for (;;) {
      const auto count = static_cast<uint32_t>(heap_.size());
      uint32_t least = at;
      for (uint32_t child = 2 * at + 1; child <= 2 * at + 2 && child < count; ++child) {
        if (heap_[child] < heap_[least]) least = child;
      }
      if (least == at) return;
      exchange(at, least);
      at = least;
    }
  }

  std::vector<Entry> heap_;
  std::vector<uint32_t> place_;  // by item
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_BASE_INDEXED_HEAP_H_
