// GroupTables holds one request's KV by head group: the number of KV entries of each group, and the pages
// that contain them.
//
// Every computed token adds one KV entry to every group, so a group's length is tokens - dropped, and no
// counter changes per step. Group g's page table is dense: KV entry i is in its page i / page_tokens. A new
// page is needed when tokens - dropped is a multiple of page_tokens. Groups are therefore ordered by dropped
// modulo page_tokens, and a decode step visits only the groups that need a page
// (docs/design/methods/tangram.md#reservation, #ragged-pages).
//
// The layout is a structure of arrays. A group may be a ring of ring_pages pages, whose content the backend
// chooses.
//
// A request that continues from a prefix checkpoint (prefix_checkpoint_cache.h) reads the first shared()
// pages of each group in place. The pages after them are *borrowed* until pages are allocated for the
// request's next tokens; copies of the borrowed pages are then made first.
//
// Invariants, verified by check(): KV entries <= page_tokens * pages in every group (T-2); the totals are the
// sums over groups.

#ifndef KVTWIN_ENGINE_KV_GROUP_TABLES_H_
#define KVTWIN_ENGINE_KV_GROUP_TABLES_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/units.h"

namespace kvtwin {

// The parameters that all requests of an engine have in common.
struct GroupShape {
  uint32_t groups = 1;
  uint32_t page_tokens = 1;
  uint32_t ring_pages = 0;  // pages of a group that is a ring
  std::vector<bool> ring;   // by group; empty: no group is a ring
  uint32_t rings = 0;       // number of groups that are rings
  bool even = false;        // every group gets as many pages as the longest one needs
};

class GroupTables {
 public:
  // Empty tables. `shape` must outlive them.
  void open(const GroupShape* shape);
  uint32_t groups() const { return shape_->groups; }

  // KV entries of one group, and of all groups, when `tokens` tokens are computed.
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
  // Number of pages that belong to prefix checkpoints.
  uint32_t lent() const { return borrows_ ? pages_all_ : shared_all_; }
  PageId page(uint32_t group, uint32_t index) const { return table_[size_t{group} * stride_ + index]; }

  // Pages of its own that the request allocates until it has `tokens` tokens, if no KV entry is dropped.
  uint64_t pages_until(uint32_t tokens) const;
  // Pages that it lacks for `tokens` tokens, and for entries[g] KV entries in group g.
  uint64_t pages_lacking(uint32_t tokens) const;
  uint64_t pages_lacking(std::span<const uint32_t> entries) const;
  // Pages that hold the KV entries of `tokens` tokens.
  uint64_t pages_filled(uint32_t tokens) const;

  // Appends each group that lacks pages for `tokens` tokens, once per page, in order. `from`: the number of
  // tokens at the last settle().
  void wanted(uint32_t from, uint32_t tokens, std::vector<uint32_t>* groups);
  // The same for after[g] KV entries in group g.
  void wanted(std::span<const uint32_t> after, std::vector<uint32_t>* groups) const;
  // Groups that need a new page for token number `token` (from 0), full rings included.
  // REQUIRES: all wanted pages were given since the last keep() and trim().
  std::span<const uint32_t> crossing(uint32_t token);
  bool ring_full(uint32_t group) const { return is_ring(group) && pages_[group] == shape_->ring_pages; }

  void give(uint32_t group, PageId page);
  PageId take_last(uint32_t group);
  // All wanted pages have been given.
  void settle() { settled_ = true; }
  // Of `tokens` tokens, group g retains kv_entries[g]. REQUIRES: not more than before; no group is a ring.
  void keep(uint32_t tokens, std::span<const uint32_t> kv_entries);
  // Removes the pages that `tokens` tokens do not need and appends them: last groups first, last pages first.
  void trim(uint32_t tokens, std::vector<PageId>* pages);
  // Appends the request's own pages and empties the tables.
  void clear(std::vector<PageId>* pages);
  // Appends all pages, group by group: those that belong to prefix checkpoints, and the request's own. The
  // numbers of KV entries stay. REQUIRES: trim() was called.
  void detach(std::vector<PageId>* lent, std::vector<PageId>* own);
  // Takes as many pages back, those for the lent ones first; all are the request's own now. REQUIRES:
  // detach(); `tokens` is what it was then.
  void attach(uint32_t tokens, std::span<const PageId> pages);

  // Prepares to begin with a prefix checkpoint: kv_entries[g] KV entries of the first `tokens` tokens in
  // group g, and shared[g] pages to be read in place. pages_until() and shared() then report the demand.
  // REQUIRES: open, and empty.
  void stand_behind(uint32_t tokens, std::span<const uint32_t> kv_entries, std::span<const uint32_t> shared);
  // Begins with it: `pages` are the prefix checkpoint's, group by group. REQUIRES: stand_behind().
  void borrow(std::span<const uint32_t> kv_entries, std::span<const PageId> pages);
  // All pages have become a prefix checkpoint's. REQUIRES: shared[g] is not less than before.
  void lend(std::span<const uint32_t> shared);
  // Removes the borrowed pages; copies replace them.
  void drop_borrowed();
  void check(uint32_t tokens) const;

 private:
  bool is_ring(uint32_t group) const { return shape_->rings > 0 && shape_->ring[group]; }
  uint32_t needs(uint32_t group, uint32_t tokens) const;
  // Only the group's own need: without the pages that make all groups even.
  uint32_t filled(uint32_t group, uint32_t tokens) const {
    return div_ceil(kv_entries(group, tokens), shape_->page_tokens);
  }
  uint32_t retained_pages(uint32_t group) const { return borrows_ ? shared(group) : pages_[group]; }
  void widen();
  void order();

  const GroupShape* shape_ = nullptr;
  bool settled_ = false;  // every group has what it needs, and no more
  bool ordered_ = false;
  uint32_t stride_ = 0;  // entries per group in table_
  uint32_t pages_all_ = 0;
  uint32_t dropped_least_ = 0;
  uint64_t dropped_all_ = 0;
  bool borrows_ = false;
  uint32_t shared_all_ = 0;
  std::vector<uint32_t> dropped_, pages_;  // by group
  std::vector<uint32_t> shared_;           // by group; read only if shared_all_ > 0
  std::vector<PageId> table_;              // group-major
  std::vector<uint32_t> order_, starts_;   // groups by dropped % page_tokens; start of each residue
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_GROUP_TABLES_H_
