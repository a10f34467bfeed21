// GroupTables is one request's KV by head group: how many KV entries each group holds, and in which pages.
//
// Every token computed adds one KV entry to every group, so a group's length is tokens - gone: nothing is
// counted per step. Group g's table is dense: KV entry i lies in page i / page_tokens of it. A new page is
// needed when tokens - gone is a multiple of page_tokens, so groups are kept ordered by gone modulo
// page_tokens, and a decode step touches only the groups that cross
// (docs/design/methods/tangram.md#reservation, #ragged-pages).
//
// Structure of arrays. A group may be a ring of ring_pages pages, whose content the backend chooses.
//
// A request that goes on from a prefix checkpoint (prefix_checkpoint_cache.h) reads the prefix checkpoint's
// first shared() pages of each group where they are. The pages behind them are *borrowed* until its next
// tokens are given pages: copies of them come first then.
//
// Invariants (check): KV entries <= page_tokens * pages in every group (T-2); the counts are the sums.

#ifndef KVTWIN_ENGINE_KV_GROUP_TABLES_H_
#define KVTWIN_ENGINE_KV_GROUP_TABLES_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/units.h"

namespace kvtwin {

// What is the same for every request of an engine.
struct GroupShape {
  uint32_t groups = 1;
  uint32_t page_tokens = 1;
  uint32_t ring_pages = 0;  // of a group that is a ring
  std::vector<bool> ring;   // by group; empty: none is
  uint32_t rings = 0;       // how many are
  bool even = false;        // every group gets as many pages as the longest one needs
};

class GroupTables {
 public:
  // Empty tables. `shape` must outlive them.
  void open(const GroupShape* shape);
  uint32_t groups() const { return shape_->groups; }

  // With `tokens` tokens computed: KV entries of one group | of all.
  uint32_t kv_entries(uint32_t group, uint32_t tokens) const {
    const uint32_t held = tokens - dropped_[group];
    return is_ring(group) ? std::min(held, shape_->ring_pages * shape_->page_tokens) : held;
  }
  uint64_t kv_entries(uint32_t tokens) const {
    const uint64_t in_ring = std::min(tokens, shape_->ring_pages * shape_->page_tokens);
    return uint64_t{groups() - shape_->rings} * tokens - dropped_all_ + shape_->rings * in_ring;
  }
  uint32_t longest(uint32_t tokens) const { return tokens - dropped_least_; }
  uint32_t pages(uint32_t group) const { return pages_[group]; }
  uint32_t pages() const { return pages_all_; }
  uint32_t shared(uint32_t group) const { return shared_all_ == 0 ? 0 : shared_[group]; }
  uint32_t shared() const { return shared_all_; }
  bool borrows() const { return borrows_; }
  // Pages that belong to prefix checkpoints.
  uint32_t lent() const { return borrows_ ? pages_all_ : shared_all_; }
  PageId page(uint32_t group, uint32_t index) const { return table_[size_t{group} * stride_ + index]; }

  // Pages of its own that it takes until it has `tokens` tokens, if nothing goes meanwhile.
  uint64_t pages_until(uint32_t tokens) const;

  // Appends each group that lacks a page for `tokens` tokens, once per page, in order. `from`: the
  // tokens it had when everything wanted was last given (settle).
  void wanted(uint32_t from, uint32_t tokens, std::vector<uint32_t>* groups);
  // Likewise once group g holds after[g] KV entries.
  void wanted(std::span<const uint32_t> after, std::vector<uint32_t>* groups) const;
  // Groups whose token number `token` (from 0) opens a page, rings included that are full.
  // REQUIRES: everything wanted was given since the last keep() and trim().
  std::span<const uint32_t> crossing(uint32_t token);
  bool ring_full(uint32_t group) const { return is_ring(group) && pages_[group] == shape_->ring_pages; }

  void give(uint32_t group, PageId page);
  PageId take_last(uint32_t group);
  // All that was wanted has been given.
  void settle() { settled_ = true; }
  // Of `tokens` tokens kv_entries[g] are left in group g. REQUIRES: not more than before; no group is a ring.
  void keep(uint32_t tokens, std::span<const uint32_t> kv_entries);
  // Appends the pages that `tokens` tokens do not need, and takes them: last groups, last pages first.
  void trim(uint32_t tokens, std::vector<PageId>* pages);
  // Appends its own pages, and forgets all.
  void clear(std::vector<PageId>* pages);

  // It would begin with a prefix checkpoint: kv_entries[g] KV entries of the first `tokens` tokens in group
  // g, shared[g] pages to be read where they are. What it would need can be asked then: pages_until(),
  // shared(). REQUIRES: open, and empty.
  void stand_behind(uint32_t tokens, std::span<const uint32_t> kv_entries, std::span<const uint32_t> shared);
  // It does: these are the prefix checkpoint's pages, group by group. REQUIRES: stand_behind().
  void borrow(std::span<const uint32_t> kv_entries, std::span<const PageId> pages);
  // All its pages became a prefix checkpoint's. REQUIRES: shared[g] is not less than before.
  void lend(std::span<const uint32_t> shared);
  // Forgets what it borrowed: copies take its place.
  void drop_borrowed();
  void check(uint32_t tokens) const;

 private:
  bool is_ring(uint32_t group) const { return shape_->rings > 0 && shape_->ring[group]; }
  uint32_t needs(uint32_t group, uint32_t tokens) const;
  uint32_t retained_pages(uint32_t group) const { return borrows_ ? shared(group) : pages_[group]; }
  void widen();
  void order();

  const GroupShape* shape_ = nullptr;
  bool settled_ = false;  // every group has what it needs, and no more
  bool ordered_ = false;
  uint32_t stride_ = 0;  // places per group in table_
  uint32_t pages_all_ = 0;
  uint32_t dropped_least_ = 0;
  uint64_t dropped_all_ = 0;
  bool borrows_ = false;
  uint32_t shared_all_ = 0;
  std::vector<uint32_t> dropped_, pages_;  // by group
  std::vector<uint32_t> shared_;           // likewise; read only where shared_all_ > 0
  std::vector<PageId> table_;              // group-major
  std::vector<uint32_t> order_, starts_;   // groups by gone % page_tokens; where each residue starts
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_GROUP_TABLES_H_
