// IdMap maps ids to indices. Its memory follows the number of ids that it holds, not their values.
//
// A hash table with linear probing; erase() moves later entries back, so there are no tombstones. The order
// of entries is never visible.

#ifndef KVTWIN_ENGINE_BASE_ID_MAP_H_
#define KVTWIN_ENGINE_BASE_ID_MAP_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvtwin {

class IdMap {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // kNone: the id is absent.
  uint32_t find(uint32_t id) const {
    if (size_ == 0) return kNone;
    const Entry& entry = entries_[place(id)];
    return entry.index;
  }
  // REQUIRES: the id is absent; index != kNone.
  void insert(uint32_t id, uint32_t index) {
    if (2 * (size_ + 1) > entries_.size()) grow();
    entries_[place(id)] = {id, index};
    ++size_;
  }
  // REQUIRES: the id is present.
  void erase(uint32_t id) {
    size_t hole = place(id);
    for (size_t at = next(hole); entries_[at].index != kNone; at = next(at)) {
      // An entry may move to the hole unless its home is between the hole and its place.
      const size_t home = home_of(entries_[at].id), distance = (at - home) & (entries_.size() - 1);
      if (distance < ((at - hole) & (entries_.size() - 1))) continue;
      entries_[hole] = entries_[at];
      hole = at;
    }
    entries_[hole] = {};
    --size_;
  }
  size_t size() const { return size_; }

 private:
  struct Entry {
    uint32_t id = 0;
    uint32_t index = kNone;
  };
  size_t next(size_t at) const { return (at + 1) & (entries_.size() - 1); }
  size_t home_of(uint32_t id) const {
    return static_cast<size_t>((id * uint64_t{0x9e3779b97f4a7c15}) >> 32) & (entries_.size() - 1);
  }
  // The entry of the id, or the empty one where it belongs.
  size_t place(uint32_t id) const {
    size_t at = home_of(id);
    while (entries_[at].index != kNone && entries_[at].id != id) at = next(at);
    return at;
  }
  void grow() {
    std::vector<Entry> old(entries_.empty() ? 16 : 2 * entries_.size());
    old.swap(entries_);
    for (const Entry& entry : old) {
      if (entry.index != kNone) entries_[place(entry.id)] = entry;
    }
  }

  std::vector<Entry> entries_;  // a power of two, at most half full
  size_t size_ = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_BASE_ID_MAP_H_
