// SnapshotCache: compressed prefixes from which other calls may go on (METHODS 7.3, 7.4).
//
// Where layouts move cells, a page says nothing about positions, so pages by position cannot be shared. A
// *snapshot* can: what a call holds at the end of a compression chunk, group by group, if that depends on the
// tokens before it alone. The prefix index keeps snapshots as it keeps pages elsewhere, one for each chunk,
// so matches, splits and leases end at chunk boundaries and nowhere else.
//
// The cells of a group before the carried window are never moved again: pages that are full of them
// (*settled*) are read by everybody who goes on from here, and by the snapshots of later chunks. The pages
// behind them (the *tail*: window cells, and the last settled ones) are the snapshot's alone; who goes on,
// its own call too, copies them and writes to the copy.
//
//   snapshot of chunk 3, one group:  [settled of 1][settled of 2][settled of 3][tail of 3]
//
// A page belongs to one snapshot. A snapshot goes when no lease stands on it or behind it, in the order of
// the PrefixEviction. O(groups) per operation and chunk.
//
// Invariants, verified by check_invariants():
//   (1) pages() = pages of the snapshots in the index; pages_loose() = of those that no lease protects;
//   (2) settled pages never become fewer from chunk to chunk.

#ifndef KVTWIN_ENGINE_POLICY_SNAPSHOT_CACHE_H_
#define KVTWIN_ENGINE_POLICY_SNAPSHOT_CACHE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/policy/group_tables.h"
#include "engine/policy/identity.h"
#include "engine/policy/prefix_index.h"

namespace kvtwin {

// The number of a snapshot (commands.h); a frame of the index.
using SnapshotId = PageId;

class SnapshotCache final : public HoldWatch {
 public:
  // At most snapshots_max at once: one page each at least.
  SnapshotCache(uint32_t units_per_chunk, uint32_t snapshots_max, const GroupShape& shape,
                std::unique_ptr<PrefixEviction> eviction);

  // A number for a snapshot to come: ends with insert() or give_back().
  bool take_number(SnapshotId* id);
  void give_back(SnapshotId id) { numbers_.release(id, 0); }

  // Protects the snapshots of the longest cached prefix of `identity`, at most chunks_max chunks.
  Lease acquire(uint64_t name_space, std::span<const UnitRun> identity, uint32_t chunks_max) {
    return index_.acquire(name_space, identity, chunks_max).lease;
  }
  // How many chunks that would be; changes nothing.
  uint32_t find(uint64_t name_space, std::span<const UnitRun> identity, uint32_t chunks_max) const {
    return index_.find_on_gpu(name_space, identity, chunks_max);
  }
  void release(const Lease& lease, bool used) { index_.release(lease, used); }
  // The call would begin behind the last chunk of the lease, `tokens` tokens. Returns that chunk's snapshot.
  // O(groups), however long the prefix: a call may ask in every step until there is room.
  // REQUIRES: the lease is of one chunk at least; the tables are empty.
  SnapshotId stand_behind(const Lease& lease, uint32_t tokens, GroupTables* tables) const;
  // It does: the tables get the pages. REQUIRES: stand_behind() with this lease.
  void adopt(const Lease& lease, GroupTables* tables) const;

  // The tables' pages become the snapshot `id` of the chunk behind the lease, which is extended over it; the
  // tables borrow them (GroupTables::lend). The last `window` cells of a group may still move. False, and
  // nothing changed, if there is a snapshot of the same tokens already, or nothing to keep.
  bool insert(uint64_t name_space, std::span<const UnitRun> identity, SnapshotId id, uint32_t tokens,
              uint32_t window, GroupTables* tables, Lease* lease);

  // Takes the snapshot that goes next; appends its pages. REQUIRES: pages_loose() > 0.
  void evict(std::vector<PageId>* pages);

  PrefixIndex& index() { return index_; }  // for what it knows of sessions
  uint32_t pages() const { return pages_; }
  uint32_t pages_loose() const { return loose_; }
  void hold(std::span<const PageId> snapshots, bool held) override;
  void check_invariants() const;

  // Pages of a group with `cells` cells that are full of cells which never move.
  static uint32_t settled_pages(uint32_t cells, uint32_t window, uint32_t page_tokens) {
    return (cells - std::min(cells, window)) / page_tokens;
  }

 private:
  struct Record {
    std::vector<uint32_t> cells;    // by group
    std::vector<uint32_t> settled;  // by group: leading pages, those of earlier chunks included
    std::vector<uint32_t> starts;   // by group: where its pages begin in `pages`; one more at the end
    std::vector<uint32_t> before;   // by group: settled pages of earlier chunks
    std::vector<PageId> pages;      // by group: own settled ones, then the tail
    bool held = false;
    bool live = false;
  };

  PagePool numbers_;
  PrefixIndex index_;
  const GroupShape& shape_;
  std::vector<Record> records_;  // as many as there ever were
  mutable std::vector<PageId> path_;
  uint32_t pages_ = 0, loose_ = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_POLICY_SNAPSHOT_CACHE_H_
