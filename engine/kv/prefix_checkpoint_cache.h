// PrefixCheckpointCache: compressed prefixes from which other requests may go on
// (docs/design/methods/composition.md#causality, #layouts).
//
// Where layouts move KV entries, a page says nothing about positions, so pages by position cannot be shared.
// A *prefix checkpoint* can: what a request holds at the end of a compression chunk, group by group, if that
// depends on the tokens before it alone. The prefix index keeps prefix checkpoints as it keeps pages
// elsewhere, one for each chunk, so matches, splits and pins end at chunk boundaries and nowhere else.
//
// The KV entries of a group before the carried window are never moved again: pages that are full of them
// (*settled*) are read by everybody who goes on from here, and by the prefix checkpoints of later chunks. The
// pages behind them (the *tail*: window KV entries, and the last settled ones) are the prefix checkpoint's
// alone; who goes on, its own request too, copies them and writes to the copy.
//
//   prefix checkpoint of chunk 3, one group:  [settled of 1][settled of 2][settled of 3][tail of 3]
//
// A page belongs to one prefix checkpoint. A prefix checkpoint goes when no pin stands on it or behind it, in
// the order of the PrefixEviction. O(groups) per operation and chunk.
//
// Invariants, verified by check_invariants():
//   (1) pages() = pages of the prefix checkpoints in the index; pages_evictable() = of those that no pin
//   protects; (2) settled pages never become fewer from chunk to chunk.

#ifndef KVTWIN_ENGINE_KV_PREFIX_CHECKPOINT_CACHE_H_
#define KVTWIN_ENGINE_KV_PREFIX_CHECKPOINT_CACHE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/identity.h"
#include "engine/kv/group_tables.h"
#include "engine/kv/prefix_index.h"

namespace kvtwin {

// The number of a prefix checkpoint (commands.h); a frame of the index.
using PrefixCheckpointId = PageId;

class PrefixCheckpointCache final : public HoldWatch {
 public:
  // At most prefix_checkpoints_max at once: one page each at least.
  PrefixCheckpointCache(uint32_t units_per_chunk, uint32_t prefix_checkpoints_max, const GroupShape& shape,
                        std::unique_ptr<PrefixEviction> eviction);

  // A number for a prefix checkpoint to come: ends with insert() or roll_back().
  bool take_number(PrefixCheckpointId* id);
  void roll_back(PrefixCheckpointId id) { numbers_.release(id, 0); }

  // Protects the prefix checkpoints of the longest cached prefix of `identity`, at most chunks_max chunks.
  Pin acquire(uint64_t name_space, std::span<const UnitRun> identity, uint32_t chunks_max) {
    return index_.acquire(name_space, identity, chunks_max).pin;
  }
  // How many chunks that would be; changes nothing.
  uint32_t find(uint64_t name_space, std::span<const UnitRun> identity, uint32_t chunks_max) const {
    return index_.find_on_gpu(name_space, identity, chunks_max);
  }
  void release(const Pin& pin, bool used) { index_.release(pin, used); }
  // The request would begin behind the last chunk of the pin, `tokens` tokens. Returns that chunk's prefix
  // checkpoint. O(groups), however long the prefix: a request may ask in every step until there is room.
  // REQUIRES: the pin is of one chunk at least; the tables are empty.
  PrefixCheckpointId stand_behind(const Pin& pin, uint32_t tokens, GroupTables* tables) const;
  // It does: the tables get the pages. REQUIRES: stand_behind() with this pin.
  void reuse(const Pin& pin, GroupTables* tables) const;

  // The tables' pages become the prefix checkpoint `id` of the chunk behind the pin, which is extended over
  // it; the tables borrow them (GroupTables::lend). The last `window` KV entries of a group may still move.
  // False, and nothing changed, if there is a prefix checkpoint of the same tokens already, or nothing to
  // keep.
  bool insert(uint64_t name_space, std::span<const UnitRun> identity, PrefixCheckpointId id, uint32_t tokens,
              uint32_t window, GroupTables* tables, Pin* pin);

  // Takes the prefix checkpoint that goes next; appends its pages. REQUIRES: pages_evictable() > 0.
  void evict(std::vector<PageId>* pages);

  PrefixIndex& index() { return index_; }  // for what it knows of sessions
  uint32_t pages() const { return pages_; }
  uint32_t pages_evictable() const { return evictable_; }
  void hold(std::span<const PageId> prefix_checkpoints, bool held) override;
  void check_invariants() const;

  // Pages of a group with `kv_entries` KV entries that are full of KV entries which never move.
  static uint32_t settled_pages(uint32_t kv_entries, uint32_t window, uint32_t page_tokens) {
    return (kv_entries - std::min(kv_entries, window)) / page_tokens;
  }

 private:
  struct Record {
    std::vector<uint32_t> kv_entries;  // by group
    std::vector<uint32_t> settled;     // by group: leading pages, those of earlier chunks included
    std::vector<uint32_t> starts;      // by group: where its pages begin in `pages`; one more at the end
    std::vector<uint32_t> before;      // by group: settled pages of earlier chunks
    std::vector<PageId> pages;         // by group: own settled ones, then the tail
    bool held = false;
    bool live = false;
  };

  PagePool numbers_;
  PrefixIndex index_;
  const GroupShape& shape_;
  std::vector<Record> records_;  // as many as there ever were
  mutable std::vector<PageId> path_;
  uint32_t pages_ = 0, evictable_ = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_PREFIX_CHECKPOINT_CACHE_H_
