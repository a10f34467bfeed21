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
// With a host tier, a prefix checkpoint is copied there as a whole, and loaded as a whole. It keeps its
// number on either tier, because the backend knows by it which KV entries are left. In the index, its copy
// has a number of its own.
//
// Invariants, verified by check_invariants():
//   (1) pages() and pages_host() = pages of the prefix checkpoints and copies in the index;
//       pages_evictable() = those on the GPU that no pin protects; of these, those with a copy are counted;
//   (2) settled pages never decrease from chunk to chunk.

#ifndef KVTWIN_ENGINE_KV_STORE_PREFIX_CHECKPOINT_CACHE_H_
#define KVTWIN_ENGINE_KV_STORE_PREFIX_CHECKPOINT_CACHE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/identity.h"
#include "engine/kv/group_tables.h"
#include "engine/kv/store/page_tiers.h"
#include "engine/kv/store/prefix_index.h"

namespace kvtwin {

// The number of a prefix checkpoint (commands.h). It takes the place of a page in the index.
using PrefixCheckpointId = PageId;

class PrefixCheckpointCache final : public HoldWatch, public PageCache {
 public:
  // Each prefix checkpoint has at least one page.
  struct Limits {
    uint32_t on_gpu = 0, on_host = 0;  // prefix checkpoints at once
  };
  // `tiers` must outlive it; null: there is no host.
  PrefixCheckpointCache(uint32_t units_per_chunk, const Limits& limits, const GroupShape& shape,
                        std::unique_ptr<PrefixEviction> eviction, const PageTiers* tiers);

  // Reserves a number for a future prefix checkpoint: ends with insert() or roll_back().
  bool take_number(PrefixCheckpointId* id);
  void roll_back(PrefixCheckpointId id) { numbers_.release(id, 0); }

  // Protects the prefix checkpoints of the longest cached prefix of `identity`, at most chunks_max chunks.
  Match acquire(uint64_t name_space, std::span<const UnitRun> identity, uint32_t chunks_max) {
    return index_.acquire(name_space, identity, chunks_max);
  }
  // Of those on the GPU alone.
  Match acquire_on_gpu(uint64_t name_space, std::span<const UnitRun> identity, uint32_t chunks_max) {
    return index_.acquire_on_gpu(name_space, identity, chunks_max);
  }
  // The number of chunks that acquire_on_gpu() would protect; changes nothing.
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
  uint32_t pages_spare() const override { return tiers_->gpu->pages_free() + evictable_copied_; }
  bool covers(std::span<const uint64_t> reserved) const override {
    return reserved[0] <= uint64_t{tiers_->gpu->pages_free()} + evictable_;
  }
  void evict_uncopied(std::vector<PageId>* pages) override { evict(index_.evict_uncopied_page(), pages); }

  PrefixIndex& index() { return index_; }
  bool offloads() const { return copies_ != nullptr; }
  uint32_t pages() const { return pages_; }
  uint32_t pages_host() const { return pages_host_; }
  void hold(std::span<const PageId> prefix_checkpoints, bool held) override;
  bool has_room(PageId id) const override;
  void copying(PageId id, PageId copy) override;
  void copy_freed(PageId copy) override;
  void resolve(std::vector<PageId>* source, std::vector<PageId>* target) override;
  void resolve_load(std::vector<PageId>* copies, std::vector<PageId>* ids) const override;
  void arrived(std::span<const PageId> numbers, std::span<const PageId> pages) override;
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
    std::vector<PageId> pages;       // by group: its own settled pages, then the tail; empty: not on the GPU
    std::vector<PageId> host_pages;  // of its copy, in the same order
    bool copied = false;             // the copy is there
    bool held = false;
    bool live = false;
  };

  bool is_copy(PageId number) const { return copies_ != nullptr && copies_->has(number); }
  PrefixCheckpointId original(PageId copy) const { return originals_[raw(copy) - numbers_.pages_total()]; }
  // The pages of prefix checkpoints or of copies.
  std::vector<PageId> pages_of(std::span<const PageId> numbers) const;
  void evict(PrefixCheckpointId id, std::vector<PageId>* pages);
  void forget(PrefixCheckpointId id);

  const PageTiers* const tiers_;
  PagePool numbers_;
  std::unique_ptr<PagePool> copies_;           // numbers behind those; null: there is no host
  std::vector<PrefixCheckpointId> originals_;  // by copy
  PrefixIndex index_;
  const GroupShape& shape_;
  std::vector<Record> records_;  // by number
  mutable std::vector<PageId> path_;
  uint32_t pages_ = 0, evictable_ = 0, evictable_copied_ = 0, pages_host_ = 0;
  uint64_t evicted_ = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_STORE_PREFIX_CHECKPOINT_CACHE_H_
