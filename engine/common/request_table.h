// RequestTable tracks the KV entries of one request: by head group, the positions that every head retains and
// the slots that hold them (docs/design/methods/composition.md#data, KvEntryList).
//
// A page of a group holds page_tokens KV entries of each of its members, column by column. KV entry i of a
// head is its i-th readable one, in order of position. It is in this slot:
//   kMove     slot i of the group's table; members have the same number of KV entries, at their own positions
//   kInPlace  the slot of its position; there is one group, and all heads retain the same positions
//   kRing     for groups that are rings: see first_in_ring() and ring_slot(); others as kMove
//
// Invariants, verified by check(): positions ascend; members of a group have the same number of KV entries;
// all slots are within the table's pages.

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

// The parameters that all requests of an engine have in common.
struct RequestTableShape {
  GroupMap groups;
  GroupShape tables;
  SlotRetention slot_retention = SlotRetention::kMove;
  uint32_t sinks = 0;     // of a ring
  bool rerotate = false;  // keys are rotated by their index among the KV entries, not by their position

  bool is_ring(uint32_t group) const { return tables.rings > 0 && tables.ring[group]; }
  uint32_t ring_slots() const { return tables.ring_pages * tables.page_tokens; }
  // At least one slot of a ring is left for the newest token.
  uint32_t ring_sinks() const { return sinks < ring_slots() ? sinks : ring_slots() - 1; }
  // The token at `position` reads the sinks and positions [first_in_ring(position), position].
  uint32_t first_in_ring(uint32_t position) const;
  // The slot of the KV entry at `position`, until it is overwritten.
  uint32_t ring_slot(uint32_t position) const;
};

struct Place {
  uint32_t page = 0;
  uint32_t slot = 0;
};
// Appends `place`; extends the last run if `place` follows it.
void append_place(Place place, std::vector<kernels::ReadRun>* runs);

class RequestTable {
 public:
  // `shape` must outlive it.
  explicit RequestTable(const RequestTableShape* shape);

  // Resets to an empty table, as at admission.
  void clear();
  // Starts with whole pages by position (kInPlace only). dropped_tokens[p]: no KV entry of position p is
  // left.
  void reuse(std::span<const PageId> pages, const std::vector<bool>& dropped_tokens);
  void allocate(uint32_t group, PageId page);
  // The request was swapped in: it has the KV entries that it had, in the pages of the hit.
  void swap_in(const PrefixHit& prefix_hit);
  // Replaces the group's table by these pages. Pages for further KV entries come from allocate().
  void retable(uint32_t group, std::span<const PageId> pages) {
    groups_.at(group).pages.assign(pages.begin(), pages.end());
  }

  // Positions [tokens(), tokens() + count) are computed now. `stored`: they become KV entries after the
  // existing ones. Rings store no positions here.
  void add(uint32_t count, bool stored);
  uint32_t tokens() const { return tokens_; }

  // During a compression, which proceeds layer by layer, members of one group may differ.
  std::span<const uint32_t> positions(uint32_t head) const;
  uint32_t kv_entries(uint32_t head) const { return static_cast<uint32_t>(positions(head).size()); }
  // Appends the positions that the head's KV entries from `first` on are rotated by.
  void phases(uint32_t head, uint32_t first, std::vector<uint32_t>* out) const;
  // The position that the next token is rotated by.
  uint32_t next_phase() const { return shape_->rerotate ? kv_entries(0) : tokens_; }
  Place place(uint32_t group, uint32_t kv_entry) const;
  Place ring_place(uint32_t group, uint32_t position) const;
  // Appends the slots of the group's first `count` KV entries.
  void reads(uint32_t group, uint32_t count, std::vector<kernels::ReadRun>* runs) const;

  // kMove: the head's KV entries from `first` on are replaced by those at `positions`.
  void replace(uint32_t head, uint32_t first, std::span<const uint32_t> positions);
  // To be called when all heads were replaced: removes pages without KV entries.
  void trim();
  // kInPlace: retains only `positions`.
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
