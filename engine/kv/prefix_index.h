// PrefixIndex: which prefixes have their KV in pages already. A radix tree over pages.
//
// A node is a run of consecutive pages; its identity is a list of unit runs, so a prompt of a million
// tokens costs a few comparisons. Only whole pages are kept. Each namespace has its own tree.
//
// Every page of a node is on the gpu, below it, or on both; what the gpu holds of a path is always a
// prefix of it. Below is the host, and behind that, where there is one, the disk (prefix_index_disk.cc): a
// page has at most one copy below, and on the disk only pages lie that are nowhere else. So along a path
// come first the pages on the gpu, with or without copies on the host, then those on the host alone, then
// those on the disk. A *pin* protects a path from eviction. Only leaves lose pages, from their tail: an
// inner page is the prefix of its children. Which leaf goes first is the PrefixEviction's choice; ties
// cannot happen, each release takes a fresh stamp.
//
// Structure after SGLang's radix cache (docs/design/methods/composition.md#serving-facts: split on
// divergence, unlocked leaves only, lock counts along the path); losing pages one by one from the tail gives
// vLLM's order of reuse as well.
//
// Invariants, verified by check_invariants():
//   (1) lock count of a node = pins on it + lock counts of its children;
//   (2) gpu pages of a child exist only where all gpu pages of its parent do;
//   (3) a page of a node without a gpu page has a copy below; behind a page on the disk all are there;
//   (4) pages_evictable() = gpu pages of unlocked nodes; every unlocked node with gpu pages and no
//       child on the gpu stands in exactly one eviction heap;
//   (5) siblings differ in their first page;
//   (6) unlocked nodes stand in a heap of a tier below if they have copies there and no child has: those
//       that have some on the host alone, in the spill heap too;
//   (7) each node counts the marks of awaited sessions on it and below it.

#ifndef KVTWIN_ENGINE_KV_PREFIX_INDEX_H_
#define KVTWIN_ENGINE_KV_PREFIX_INDEX_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/commands.h"
#include "engine/base/identity.h"
#include "engine/base/indexed_heap.h"
#include "engine/base/units.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/prefix_eviction.h"

namespace kvtwin {

enum class NodeId : uint32_t {};
constexpr NodeId kNoNode{0};

// Protection of the first `pages` pages of one identity.
struct Pin {
  NodeId node = kNoNode;
  uint32_t pages = 0;
};

struct Match {
  Pin pin;
  uint32_t pages_gpu = 0;   // so many of them, from the start, are on the gpu
  uint64_t load = kNoLoad;  // a recall that is under way for some of the others
  static constexpr uint64_t kNoLoad = UINT64_MAX;
};

// Is told which pages of the index somebody pins (held), and which nobody does any more. Pages come into
// the index held, and leave it unheld.
class HoldWatch {
 public:
  virtual ~HoldWatch() = default;
  virtual void hold(std::span<const PageId> pages, bool held) = 0;
};

class PrefixIndex {
 public:
  // `host` may be null: no host tier; `watch` and `disk` too. All must outlive the index. REQUIRES: no disk
  // without a host tier; no page is in two pools.
  PrefixIndex(uint32_t units_per_page, PagePool* gpu, PagePool* host,
              std::unique_ptr<PrefixEviction> eviction, HoldWatch* watch = nullptr, PagePool* disk = nullptr);

  // Protects the longest cached prefix of `identity`, at most pages_max pages. Splits a node where the
  // match ends inside it.
  Match acquire(uint64_t name_space, std::span<const UnitRun> identity, uint32_t pages_max);
  // As acquire(), of what is on the gpu.
  Match acquire_on_gpu(uint64_t name_space, std::span<const UnitRun> identity, uint32_t pages_max) {
    const Match match = acquire(name_space, identity, pages_max);
    if (match.pages_gpu == match.pin.pages) return match;
    release(match.pin, false);
    return acquire(name_space, identity, match.pages_gpu);
  }
  // Pages of the longest prefix of `identity` that is all on the gpu, at most pages_max. Touches nothing.
  uint32_t find_on_gpu(uint64_t name_space, std::span<const UnitRun> identity, uint32_t pages_max) const;
  // Ends a pin. `used`: the path counts as used now; otherwise it keeps its age.
  void release(const Pin& pin, bool used);

  // Adds `pages`, which hold identity pages [pin->pages, pin->pages + pages.size()), behind the
  // pin and extends it over them. False, and nothing changed, if the index holds the same tokens
  // already: then the caller keeps its own copy. kNoPage among them is a dropped slot: a page of which
  // nothing is left; dead[i] KV entries of pages[i] are (it may be shorter). Holes match like pages.
  // REQUIRES: no host tier where there are dropped slots.
  bool insert(uint64_t name_space, std::span<const UnitRun> identity, std::span<const PageId> pages, Pin* pin,
              std::span<const uint16_t> dropped_tokens = {});

  // Appends the gpu pages [0, pin.pages) in order, kNoPage for dropped slots. REQUIRES: all are on the gpu.
  void gpu_pages(const Pin& pin, std::vector<PageId>* pages) const;
  // The last of them. REQUIRES: the pin is of one page at least, and all are on the gpu.
  PageId last_gpu_page(const Pin& pin) const {
    const Node& node = nodes_[raw(pin.node)];
    return node.gpu[pin.pages - node.pages_before - 1];
  }
  // Appends the pages in which copies of [first, pin.pages) lie, on the host or on the disk, in order.
  // REQUIRES: all have one.
  void host_pages(const Pin& pin, uint32_t first, std::vector<PageId>* pages) const;
  uint32_t pages_on_gpu(const Pin& pin) const;

  // Whose they are (prefix_index_sessions.cc): nothing, unless the PrefixEviction asks for it.
  // The path of the pin has been used by `session`.
  void mark(const Pin& pin, SessionId session);
  // A request of the session is here: what is the session's is wanted now. Ends with end_request(), after
  // which the next expect() of a session that ever had one is waited for until `until`.
  void begin_request(SessionId session);
  void end_request(SessionId session, Instant until);
  // The session's next call should come, and is waited for until `until`. Nothing while one is here.
  void expect(SessionId session, Instant until);
  // It will not come back. Likewise.
  void forget(SessionId session);
  // Sessions whose `until` is over are not waited for any more, until the next expect().
  void forget_overdue(Instant now);

  // Takes the next page to go out of the index and off the gpu; it belongs to the caller now. Clean
  // pages (with a host copy) go first. REQUIRES: pages_evictable() > 0.
  PageId evict_gpu_page();
  // When the page that evict_gpu_page() would give was let go. REQUIRES: pages_evictable() > 0.
  uint64_t next_eviction_rank() const;

  // Drops the oldest copies until so many pages of the host tier are free; false: they cannot be.
  bool free_host_pages(uint32_t pages);
  // Picks up to pages_max pages, next to go, that have no host copy, and protects them with *pin;
  // *first is the position of the first. Appends their gpu pages to *source and owned host pages to
  // *target. On a full host only copies of what was let go earlier make room. Ends with cleaned() or
  // offload_failed().
  enum class Offload : uint8_t { kStarted, kNothingToOffload, kHostHoldsNewer };
  Offload start_offload(uint32_t pages_max, Pin* pin, uint32_t* first, std::vector<PageId>* source,
                        std::vector<PageId>* target);
  // Takes the page that is next to be cleaned instead. REQUIRES: there is one (kHostHoldsNewer).
  PageId evict_uncopied_page() { return evict_tail(uncopied_.top()); }  // no dropped slots: see insert
  void offloaded(const Pin& pin, uint32_t first, std::span<const PageId> host);
  void offload_failed(const Pin& pin, std::span<const PageId> host);
  // Pages [first, pin.pages) are being recalled by the transfer `load`; ends with recalled(), of all or
  // of the first of them, or load_failed(). None of the three touches the pin. What came from the disk
  // is on the gpu alone then.
  void start_load(const Pin& pin, uint32_t first, uint64_t load);
  void loaded(const Pin& pin, uint32_t first, std::span<const PageId> gpu);
  void load_failed(const Pin& pin, uint32_t first);

  // Picks up to pages_max pages that are on the host alone, next to go, and protects them with *pin; *first
  // is the position of the first. Appends their host pages to *source and owned disk pages to *target. On a
  // full disk what is not newer makes room. False: there is nothing to spill, or all on the disk is newer.
  // Ends with spilled() or spill_failed().
  bool start_spill(uint32_t pages_max, Pin* pin, uint32_t* first, std::vector<PageId>* source,
                   std::vector<PageId>* target);
  // Their host pages are free, but for those that somebody else pins, or that came back to the gpu
  // meanwhile: they stay where they are, since they are in use, or being read by a recall.
  void spilled(const Pin& pin, uint32_t first, std::span<const PageId> disk);
  void spill_failed(const Pin& pin, std::span<const PageId> disk);
  bool on_disk(PageId page) const { return disk_pool_ != nullptr && disk_pool_->has(page); }

  // `kv_entries` tokens of page `page` of the pin will never be read again (dead slots,
  // docs/design/methods/intentkv.md#dead-slot).
  void mark_dropped(const Pin& pin, uint32_t page, uint32_t kv_entries);
  // Takes page `page` of the pin out and leaves a dropped slot, if no other pin stands on it; else, and where
  // there is a dropped slot already, kNoPage.
  PageId take_dropped_page(const Pin& pin, uint32_t page);
  // No other pin stands on page `page`.
  bool sole(const Pin& pin, uint32_t page) const;
  uint32_t dropped_slots(const Pin& pin) const;
  // Dead KV entries of each page of the pin, replacing *KV entries; all 0: empty.
  void dropped_entries(const Pin& pin, std::vector<uint16_t>* kv_entries) const;
  // Tokens of the pin that are not dead, for pages of page_tokens.
  uint64_t live_tokens(const Pin& pin, uint32_t page_tokens) const;

  uint64_t tick() { return ++clock_; }  // a fresh stamp
  uint32_t pages_evictable() const { return evictable_; }
  uint64_t pages_evicted() const { return evicted_; }  // from the gpu, so far
  uint32_t pages_evictable_copied() const { return evictable_copied_; }
  uint32_t pages_gpu() const { return pages_gpu_; }
  uint32_t pages_host() const { return pages_host_; }
  uint32_t pages_disk() const { return pages_disk_; }
  uint32_t nodes() const { return nodes_live_; }
  void check_invariants() const;

 private:
  struct Node {
    uint32_t parent = 0;
    uint32_t first_child = 0, next_sibling = 0, previous_sibling = 0;
    uint32_t locks = 0;
    uint32_t children_gpu = 0, children_host = 0, children_disk = 0;  // children with pages there
    uint32_t pages = 0;
    uint32_t pages_before = 0;                // on the path above
    uint32_t host_count = 0, disk_count = 0;  // of `host`
    uint32_t copied_count = 0;                // gpu pages with a host copy
    uint32_t dropped_slots = 0;               // places in `gpu` that have no page
    uint32_t uses = 0;
    uint64_t stamp = 0;
    uint64_t floor = 0;  // the eviction's, at the last use
    uint64_t load = Match::kNoLoad;
    uint64_t name_space = 0;
    uint64_t hash = 0;  // of (parent, name space, first page)
    std::vector<UnitRun> runs;
    std::vector<PageId> gpu;               // of the first gpu.size() pages; kNoPage: a dropped slot
    std::vector<PageId> host;              // copies below, on host or disk; kNoPage: none; empty: none at all
    std::vector<uint16_t> dropped_tokens;  // KV entries per page; empty: none
    uint32_t first_mark = 0;               // of those on it
    uint32_t marks_expected = 0, marks_here = 0;  // on it or below it, of sessions that are awaited so

    uint32_t gpu_pages() const { return static_cast<uint32_t>(gpu.size()) - dropped_slots; }
  };
  struct Owner {
    Awaited awaited = Awaited::kNo;
    uint32_t requests = 0;   // here
    bool announced = false;  // expect() has spoken of it
    std::vector<uint32_t> marks;
  };
  // A request of the session ended on the node: the session uses it and all nodes above.
  struct Mark {
    uint32_t session = 0;
    uint32_t node = 0;
    uint32_t next = 0, previous = 0;  // on the same node
  };
  // A place in an identity.
  struct Cursor {
    std::span<const UnitRun> runs;
    size_t run = 0;
    uint32_t offset = 0;
  };

  uint64_t hash_first_page(uint32_t parent, uint64_t name_space, Cursor cursor) const;
  uint32_t find_child(uint32_t parent, uint64_t name_space, uint64_t hash, const Cursor& cursor) const;
  uint32_t match_units(const Node& node, Cursor cursor) const;
  static void advance(Cursor* cursor, uint64_t units);
  static bool has_units(Cursor cursor, uint64_t units);

  uint32_t make_node();
  void drop_node(uint32_t id);
  void stand_above(uint32_t upper, uint32_t id);
  void split(uint32_t id, uint32_t pages);
  void append_runs(Cursor cursor, uint64_t units, std::vector<UnitRun>* runs) const;
  void trim_last_page(uint32_t id);
  void drop_host_page(uint32_t id);
  void drop_children(uint32_t id);
  void drop_behind(uint32_t id, uint32_t pages);
  void drop_disk_page(uint32_t id);
  bool take_host_page(uint64_t rank, PageId* page);
  PageId evict_tail(uint32_t id);
  void lock(uint32_t id);
  void unlock(uint32_t id);
  void file(uint32_t id);  // puts the node into the heaps it belongs to, and out of the others
  uint64_t rank_of(const Node& node) const;
  static bool tail_is_copied(const Node& node);
  void set_host(uint32_t id, uint32_t index, PageId page);
  void count_copy(uint32_t id, uint32_t index, PageId page, bool has);
  void release_copy(uint32_t id, uint32_t index);
  void check_tiers(uint32_t id) const;
  Owner& owner(SessionId session);
  static Awaited awaited(const Node& node);
  void await(uint32_t session, Awaited awaited);
  void recount(uint32_t id, Awaited from, Awaited to);
  void put_mark(uint32_t mark, uint32_t id);
  void take_mark(uint32_t mark);
  void drop_mark(uint32_t mark);
  void lift_marks(uint32_t id);
  void check_marks() const;
  template <typename Visit>
  void visit_pages(const Pin& pin, uint32_t first, uint32_t last, Visit visit) const;

  void table_put(uint64_t hash, uint32_t id);
  void table_replace(uint64_t hash, uint32_t from, uint32_t to);
  void table_erase(uint64_t hash, uint32_t id);
  void table_grow();

  const uint32_t units_per_page_;
  PagePool* const gpu_pool_;
  PagePool* const host_pool_;
  PagePool* const disk_pool_;
  const std::unique_ptr<PrefixEviction> eviction_;
  HoldWatch* const watch_;
  const bool needs_sessions_;
  std::vector<Node> nodes_;  // [0] is above all roots
  std::vector<uint32_t> unused_;
  std::vector<uint32_t> table_;  // open addressing by Node::hash; 0: empty
  IndexedHeap uncopied_, copied_, host_, spill_, disk_;
  std::vector<Owner> owners_;  // by SessionId
  std::vector<Mark> marks_;    // [0] is none
  std::vector<uint32_t> unused_marks_;
  IndexedHeap waited_for_;  // sessions, by until when
  mutable std::vector<uint32_t> path_;
  uint64_t clock_ = 0;
  uint64_t evicted_ = 0;
  uint32_t evictable_ = 0, evictable_copied_ = 0;
  uint32_t pages_gpu_ = 0, pages_host_ = 0, pages_disk_ = 0, nodes_live_ = 0;
};

// Calls visit(node, from, to) along the path: pages [from, to) of each node that has some of [first, last).
template <typename Visit>
void PrefixIndex::visit_pages(const Pin& pin, uint32_t first, uint32_t last, Visit visit) const {
  path_.clear();
  for (uint32_t id = raw(pin.node); id != 0; id = nodes_[id].parent) {
    if (nodes_[id].pages_before < last) path_.push_back(id);
    if (nodes_[id].pages_before <= first) break;
  }
  for (auto id = path_.rbegin(); id != path_.rend(); ++id) {
    const Node& node = nodes_[*id];
    const uint32_t from = first > node.pages_before ? first - node.pages_before : 0;
    const uint32_t to = std::min(node.pages, last - node.pages_before);
    if (from < to) visit(*id, from, to);
  }
}

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_PREFIX_INDEX_H_
