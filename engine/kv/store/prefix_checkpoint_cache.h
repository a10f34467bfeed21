// PrefixCheckpointCache stores compressed prefixes from which other requests can continue
// (docs/design/methods/composition.md#causality, #layouts).
//
// In layouts that move KV entries, a page does not correspond to a range of positions, so pages cannot be
// shared by position. A *prefix checkpoint* can be shared: the state of a request at the end of a compression
// chunk, group by group, provided that it depends only on the tokens before it. The prefix index stores
// prefix checkpoints where it stores pages otherwise, one per chunk, so that matches, splits and pins end at
// chunk boundaries only.
//
// KV entries of a group before the carried window never move again. Pages full of them (*settled*) are read
// in place by every request that continues from here, and by the prefix checkpoints of later chunks. The
// pages after them (the *tail*: KV entries of the window, and the last settled ones) belong to the prefix
// checkpoint alone. A request that continues, including the one that created it, copies them and writes to
// the copy.
//
//   prefix checkpoint of chunk 3, one group:  [settled of 1][settled of 2][settled of 3][tail of 3]
//
// Each page belongs to one prefix checkpoint. A prefix checkpoint can be evicted when no pin covers it or a
// later chunk of its path; PrefixEviction determines the order. O(groups) per operation and chunk.
//
// Invariants, verified by check_invariants():
//   (1) pages() = pages of the prefix checkpoints in the index; pages_evictable() = those of them that no pin
//       protects;
//   (2) settled pages never decrease from chunk to chunk.

#ifndef KVTWIN_ENGINE_KV_STORE_PREFIX_CHECKPOINT_CACHE_H_
#define KVTWIN_ENGINE_KV_STORE_PREFIX_CHECKPOINT_CACHE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/identity.h"
#include "engine/kv/group_tables.h"
#include "engine/kv/store/prefix_index.h"

namespace kvtwin {

// The number of a prefix checkpoint (commands.h). It takes the place of a page in the index.
using PrefixCheckpointId = PageId;

class PrefixCheckpointCache final : public HoldWatch, public PageCache {
 public:
  // Holds at most prefix_checkpoints_max at once; each has at least one page.
  PrefixCheckpointCache(uint32_t units_per_chunk, uint32_t prefix_checkpoints_max, const GroupShape& shape,
                        std::unique_ptr<PrefixEviction> eviction);

  // Reserves a number for a future prefix checkpoint: ends with insert() or roll_back().
  bool take_number(PrefixCheckpointId* id);
  void roll_back(PrefixCheckpointId id) { numbers_.release(id, 0); }

  // Protects the prefix checkpoints of the longest cached prefix of `identity`, at most chunks_max chunks.
  Pin acquire(uint64_t name_space, std::span<const UnitRun> identity, uint32_t chunks_max) {
    return index_.acquire(name_space, identity, chunks_max).pin;
  }
  // The number of chunks that acquire() would protect; changes nothing.
  uint32_t find(uint64_t name_space, std::span<const UnitRun> identity, uint32_t chunks_max) const {
    return index_.find_on_gpu(name_space, identity, chunks_max);
  }
  void release(const Pin& pin, bool used) { index_.release(pin, used); }
  // Prepares `tables` to begin after the last chunk of the pin, at `tokens` tokens. Returns that chunk's
  // prefix checkpoint. O(groups), however long the prefix, because a request may retry in every step until
  // there is room. REQUIRES: the pin covers at least one chunk; the tables are empty.
  PrefixCheckpointId stand_behind(const Pin& pin, uint32_t tokens, GroupTables* tables) const;
  // Gives the pages to the tables. REQUIRES: stand_behind() with this pin.
  void reuse(const Pin& pin, GroupTables* tables) const;

  // Turns the tables' pages into prefix checkpoint `id` of the chunk after the pin, and extends the pin over
  // it; the tables borrow the pages (GroupTables::lend). The last `window` KV entries of a group may still
  // move. Returns false, and changes nothing, if a prefix checkpoint of the same tokens exists already, or if
  // the tables have no pages.
  bool insert(uint64_t name_space, std::span<const UnitRun> identity, PrefixCheckpointId id, uint32_t tokens,
              uint32_t window, GroupTables* tables, Pin* pin);

  // The pages of prefix checkpoints that no pin protects. A prefix checkpoint is evicted as a whole.
  uint32_t pages_evictable() const override { return evictable_; }
  uint64_t next_eviction_rank() const override { return index_.next_eviction_rank(); }
  void evict_pages(uint32_t count, std::vector<PageId>* pages) override;
  uint64_t pages_evicted() const { return evicted_; }  // so far

  PrefixIndex& index() { return index_; }  // for its functions about sessions
  uint32_t pages() const { return pages_; }
  void hold(std::span<const PageId> prefix_checkpoints, bool held) override;
  void check_invariants() const;

  // Pages of a group with `kv_entries` KV entries that are full of settled ones.
  static uint32_t settled_pages(uint32_t kv_entries, uint32_t window, uint32_t page_tokens) {
    return (kv_entries - std::min(kv_entries, window)) / page_tokens;
  }

 private:
  struct Record {
    std::vector<uint32_t> kv_entries;  // by group
    std::vector<uint32_t> settled;     // by group: leading settled pages, those of earlier chunks included
    std::vector<uint32_t> starts;      // by group: start of its pages in `pages`; one more at the end
    std::vector<uint32_t> before;      // by group: settled pages of earlier chunks
    std::vector<PageId> pages;         // by group: its own settled pages, then the tail
    bool held = false;
    bool live = false;
  };

  PagePool numbers_;
  PrefixIndex index_;
  const GroupShape& shape_;
  std::vector<Record> records_;  // by number
  mutable std::vector<PageId> path_;
  uint32_t pages_ = 0, evictable_ = 0;
  uint64_t evicted_ = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_STORE_PREFIX_CHECKPOINT_CACHE_H_
