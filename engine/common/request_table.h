// RequestTable says where the KV entries of one request lie: by head group, which positions every head still
// has and in which slots they are (docs/design/methods/composition.md#data, KvEntryList).
//
// A page of a group holds page_tokens KV entries of each of its members, column by column. Cell i of a head
// is its i-th readable one, in order of position:
//   kMove   in slot i of the group's table; members hold equal numbers of KV entries, each of its own
//   positions kInPlace  in the slot of its position; one group, and all heads hold the same positions kRing
//   of the rings among the groups: see first_in_ring(); the others are as kMove
//
// Invariants, verified by check(): positions ascend; members of a group have equally many KV entries; no slot
// behind the table's pages is named.

#ifndef KVTWIN_ENGINE_COMMON_REQUEST_TABLE_H_
#define KVTWIN_ENGINE_COMMON_REQUEST_TABLE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/commands.h"
#include "engine/kv/group_tables.h"
#include "engine/kv/head_groups.h"
#include "engine/methods/axes.h"
#include "kernels/common/kv_pages.h"

namespace kvtwin::cpu {

// What is the same for all requests of an engine.
struct RequestTableShape {
  GroupMap groups;
  GroupShape tables;
  SlotRetention slot_retention = SlotRetention::kMove;
  uint32_t sinks = 0;     // of a ring
  bool rerotate = false;  // keys are rotated by their places among the KV entries, not by their positions

  bool is_ring(uint32_t group) const { return tables.rings > 0 && tables.ring[group]; }
  uint32_t ring_slots() const { return tables.ring_pages * tables.page_tokens; }
  // A ring keeps one KV entry at least for the newest token.
  uint32_t ring_sinks() const { return sinks < ring_slots() ? sinks : ring_slots() - 1; }
  // The row at `position` reads the sinks, and [first_in_ring(position), position] behind them.
  uint32_t first_in_ring(uint32_t position) const;
  // Where a ring has the KV entry of `position`, until it is overwritten.
  uint32_t ring_slot(uint32_t position) const;
};

struct Place {
  uint32_t page = 0;
  uint32_t slot = 0;
};
// Appends `place`, to the last run if it follows on it.
void append_place(Place place, std::vector<kernels::ReadRun>* runs);

class RequestTable {
 public:
  // `shape` must outlive it.
  explicit RequestTable(const RequestTableShape* shape);

  // What a request starts with when it is admitted: nothing.
  void clear();
  // Whole pages by position, kInPlace alone. dead[p]: nothing is left of position p.
  void reuse(std::span<const PageId> pages, const std::vector<bool>& dropped_tokens);
  void allocate(uint32_t group, PageId page);
  // kMove: the group's table is these pages; KV entries behind them get theirs by allocations.
  void retable(uint32_t group, std::span<const PageId> pages) {
    groups_.at(group).pages.assign(pages.begin(), pages.end());
  }

  // Positions [tokens(), tokens() + count) are computed now. `stored`: as KV entries, behind the others;
  // rings hold nothing until ring_hold().
  void add(uint32_t count, bool stored);
  uint32_t tokens() const { return tokens_; }

  // While a compression goes from layer to layer, members of one group differ.
  std::span<const uint32_t> positions(uint32_t head) const;
  uint32_t kv_entries(uint32_t head) const { return static_cast<uint32_t>(positions(head).size()); }
  // What KV entries [first, KV entries) of the head are rotated by, appended.
  void phases(uint32_t head, uint32_t first, std::vector<uint32_t>* out) const;
  // What the next token is rotated by.
  uint32_t next_phase() const { return shape_->rerotate ? kv_entries(0) : tokens_; }
  Place place(uint32_t group, uint32_t kv_entry) const;
  Place ring_place(uint32_t group, uint32_t position) const;
  // Appends the group's first `count` KV entries.
  void reads(uint32_t group, uint32_t count, std::vector<kernels::ReadRun>* runs) const;

  // kMove: the head's KV entries from `first` on become those of `positions`.
  void replace(uint32_t head, uint32_t first, std::span<const uint32_t> positions);
  // Once all heads were: pages that no KV entry reaches are nobody's.
  void trim();
  // kInPlace: what is not in `positions` is gone.
  void drop_all_but(std::vector<uint32_t> positions) { groups_[0].positions[0] = std::move(positions); }
  std::span<const PageId> pages(uint32_t group) const { return groups_[group].pages; }
  void check() const;

 private:
  struct Group {
    std::vector<PageId> pages;
    std::vector<std::vector<uint32_t>> positions;  // by member; kInPlace: one list for all
  };
  const std::vector<uint32_t>& list(uint32_t group, uint32_t column) const {
    const std::vector<std::vector<uint32_t>>& lists = groups_[group].positions;
    return lists[column < lists.size() ? column : 0];
  }

  const RequestTableShape* shape_;
  std::vector<Group> groups_;
  uint32_t tokens_ = 0;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_COMMON_REQUEST_TABLE_H_
