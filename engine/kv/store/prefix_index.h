// PrefixIndex is the prefix cache: a radix tree over pages that finds the cached prefix of a prompt.
//
// A node is a run of consecutive pages. Its identity is a list of unit runs, so a prompt of a million tokens
// costs a few comparisons. Only whole pages are cached. Each namespace has its own tree.
//
// Every page of a node is on the GPU, on a lower tier, or on both. The GPU pages of a path are always a
// prefix of it. The lower tiers are the host and, optionally, the disk (prefix_index_disk.cc). A page has at
// most one copy there, and only pages that are nowhere else are on the disk. Along a path come first the
// pages on the GPU, with or without copies on the host, then those on the host alone, then those on the disk.
//
// A *pin* protects a path from eviction. Only leaves lose pages, from their tail, because an inner page is
// the prefix of its children. PrefixEviction selects the leaf. Ranks never tie: each release takes a new
// stamp.
//
// The structure follows SGLang's radix cache (docs/design/methods/composition.md#serving-facts: split on
// divergence, unlocked leaves only, lock counts along the path). Losing pages one by one from the tail gives
// vLLM's order of reuse as well.
//
// Invariants, verified by check_invariants():
//   (1) lock count of a node = pins on it + lock counts of its children;
//   (2) a child has GPU pages only if all pages of its parent are on the GPU;
//   (3) a page of a node without a GPU page has a copy on a lower tier; all pages after one on the disk are
//       on the disk;
//   (4) pages_evictable() = GPU pages of unlocked nodes; every unlocked node with GPU pages and no child on
//       the GPU is in exactly one eviction heap;
//   (5) siblings differ in their first page;
//   (6) unlocked nodes are in the heap of a lower tier if they have copies there and no child has; nodes with
//       pages on the host alone are in the spill heap too;
//   (7) each node counts the marks of awaited sessions on it and below it.

#ifndef KVTWIN_ENGINE_KV_STORE_PREFIX_INDEX_H_
#define KVTWIN_ENGINE_KV_STORE_PREFIX_INDEX_H_

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
#include "engine/kv/store/page_cache.h"
#include "engine/kv/store/prefix_eviction.h"

namespace kvtwin {

enum class NodeId : uint32_t {};
constexpr NodeId kNoNode{0};

// Protects the first `pages` pages of one identity.
struct Pin {
  NodeId node = kNoNode;
  uint32_t pages = 0;
};

struct Match {
  Pin pin;
  uint32_t pages_gpu = 0;   // leading pages that are on the GPU
  uint64_t load = kNoLoad;  // a transfer in progress that loads some of the others
  static constexpr uint64_t kNoLoad = UINT64_MAX;
};

// Is notified when pages of the index become pinned (held), and when the last pin is released. Pages are held
// when they are inserted and not held when they leave.
//
// A page of the index may stand for several pages (prefix_checkpoint_cache.h): then so does its copy on the
// host, and both keep a number of the index's pools.
class HoldWatch {
 public:
  virtual ~HoldWatch() = default;
  virtual void hold(std::span<const PageId> pages, bool held) = 0;
  // A page that is not in the index is freed.
  virtual void freed(PageId) {}

  // Whether the host has room for what `page` stands for.
  virtual bool has_room(PageId /*page*/) const { return true; }
  // `page` is about to be copied to the host as `copy`, which ends with copy_freed().
  virtual void copying(PageId /*page*/, PageId /*copy*/) {}
  virtual void copy_freed(PageId /*copy*/) {}
  // Replaces the numbers of an offload that starts by the pages to be copied.
  virtual void resolve(std::vector<PageId>* /*source*/, std::vector<PageId>* /*target*/) {}
  // Replaces the numbers of copies by the pages to be loaded, and appends the numbers under which they
  // return; nothing: those of the target.
  virtual void resolve_load(std::vector<PageId>* /*copies*/, std::vector<PageId>* /*numbers*/) const {}
  // What the numbers stand for has been copied to `pages`.
  virtual void arrived(std::span<const PageId> /*numbers*/, std::span<const PageId> /*pages*/) {}
};

class PrefixIndex final : public PageCache {
 public:
  // `host` (the host tier), `watch` and `disk` may be null. All must outlive the index. REQUIRES: no disk
  // without a host tier; no page is in two pools.
  PrefixIndex(uint32_t units_per_page, PagePool* gpu, PagePool* host,
              std::unique_ptr<PrefixEviction> eviction, HoldWatch* watch = nullptr, PagePool* disk = nullptr);

  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // Protects the longest cached prefix of `identity`, at most pages_max pages. Splits a node if the match
  // ends inside it.
  Match acquire(uint64_t name_space, std::span<const UnitRun> identity, uint32_t pages_max);
  // Like acquire(), but only for pages on the GPU.
  Match acquire_on_gpu(uint64_t name_space, std::span<const UnitRun> identity, uint32_t pages_max) {
    const Match match = acquire(name_space, identity, pages_max);
    if (match.pages_gpu == match.pin.pages) return match;
    release(match.pin, false);
    return acquire(name_space, identity, match.pages_gpu);
  }
  // Length in pages of the longest prefix of `identity` that is all on the GPU, at most pages_max. Changes
  // nothing.
  uint32_t find_on_gpu(uint64_t name_space, std::span<const UnitRun> identity, uint32_t pages_max) const;
  // Releases a pin. `used`: the path counts as used now; otherwise its stamp does not change.
  void release(const Pin& pin, bool used);

  // Adds `pages`, which hold identity pages [pin->pages, pin->pages + pages.size()), after the pin and
  // extends the pin over them. Returns false, and changes nothing, if the index already has the same tokens;
  // the caller then keeps its own copy. kNoPage among `pages` is a page without retained KV entries (a
  // dropped slot of the index); it matches like a page. dropped_tokens[i] counts the dropped KV entries of
  // pages[i] (the span may be shorter). REQUIRES: no host tier if KV entries are dropped.
  bool insert(uint64_t name_space, std::span<const UnitRun> identity, std::span<const PageId> pages, Pin* pin,
              std::span<const uint16_t> dropped_tokens = {});

  // Appends the GPU pages [0, pin.pages) in order, kNoPage for dropped slots. REQUIRES: all are on the GPU.
  void gpu_pages(const Pin& pin, std::vector<PageId>* pages) const;
  // The last of them. REQUIRES: the pin covers at least one page, and all are on the GPU.
  PageId last_gpu_page(const Pin& pin) const {
    const Node& node = nodes_[raw(pin.node)];
    return node.gpu[pin.pages - node.pages_before - 1];
  }
  // Appends the copies of pages [first, pin.pages) on the host or the disk, in order. REQUIRES: all have one.
  void host_pages(const Pin& pin, uint32_t first, std::vector<PageId>* pages) const;

  // Sessions (prefix_index_sessions.cc). These functions do nothing unless PrefixEviction needs sessions.
  // The path of the pin has been used by `session`.
  void mark(const Pin& pin, SessionId session);
  // A request of the session is here, so its prefixes are needed now. Ends with end_request(); afterwards a
  // session that was ever announced by expect() is awaited for kPatience.
  void begin_request(Instant now, SessionId session);
  void end_request(Instant now, SessionId session);
  // The session's next request is expected, and awaited for PrefixEviction::patience(). Does nothing while
  // one is here.
  void expect(Instant now, SessionId session, const SessionPause& pause);
  // The session will not return. Does nothing while a request is here.
  void forget(SessionId session);
  // Sessions whose `until` has passed are no longer awaited, until the next expect().
  void forget_overdue(Instant now);

  // Removes the next page to be evicted from the GPU and gives it to the caller. Pages with a host copy go
  // first. REQUIRES: pages_evictable() > 0.
  PageId evict_gpu_page();
  // Does so `count` times.
  void evict_pages(uint32_t count, std::vector<PageId>* pages) override;
  uint64_t next_eviction_rank() const override;

  // Drops the oldest copy on the host that may be dropped; false: there is none.
  bool drop_oldest_copy();
  // Selects up to pages_max pages without a host copy, in order of eviction, and protects them with *pin;
  // *first is the position of the first. Appends their GPU pages to *source and newly acquired host pages to
  // *target. On a full host, only copies of pages that were released earlier make room. Ends with offloaded()
  // or offload_failed().
  enum class Offload : uint8_t { kStarted, kNothingToOffload, kHostHoldsNewer };
  Offload start_offload(uint32_t pages_max, Pin* pin, uint32_t* first, std::vector<PageId>* source,
                        std::vector<PageId>* target);
  // Evicts the page that would be offloaded next. REQUIRES: there is one (kHostHoldsNewer).
  PageId evict_uncopied_page() { return evict_tail(uncopied_.top()); }  // no dropped slots: see insert()
  void evict_uncopied(std::vector<PageId>* pages) override { pages->push_back(evict_uncopied_page()); }
  void offloaded(const Pin& pin, uint32_t first, std::span<const PageId> host);
  void offload_failed(const Pin& pin, std::span<const PageId> host);
  // Pages [first, pin.pages) are being loaded by transfer `load`. Ends with loaded(), of all or of the
  // leading ones, or with load_failed(). None of the three changes the pin. Pages loaded from the disk are
  // then on the GPU alone.
  void start_load(const Pin& pin, uint32_t first, uint64_t load);
  void loaded(const Pin& pin, uint32_t first, std::span<const PageId> gpu);
  void load_failed(const Pin& pin, uint32_t first);

  // Selects up to pages_max pages that are on the host alone, in order of eviction, and protects them with
  // *pin; *first is the position of the first. Appends their host pages to *source and newly acquired disk
  // pages to *target. On a full disk, only pages that are not newer make room. Returns false if there is
  // nothing to spill, or all pages on the disk are newer. Ends with spilled() or spill_failed().
  bool start_spill(uint32_t pages_max, Pin* pin, uint32_t* first, std::vector<PageId>* source,
                   std::vector<PageId>* target);
  // Frees the host pages, except those of nodes with another pin and of pages that returned to the GPU: these
  // remain on the host, because they are in use or are being loaded.
  void spilled(const Pin& pin, uint32_t first, std::span<const PageId> disk);
  void spill_failed(const Pin& pin, std::span<const PageId> disk);
  bool on_disk(PageId page) const { return disk_pool_ != nullptr && disk_pool_->has(page); }

  // `kv_entries` tokens of page `page` of the pin will never be read again
  // (docs/design/methods/intentkv.md#dead-slot).
  void mark_dropped(const Pin& pin, uint32_t page, uint32_t kv_entries);
  // Removes page `page` of the pin, leaves a dropped slot, and returns the page. Returns kNoPage, and changes
  // nothing, if another pin covers it or it is a dropped slot already.
  PageId take_dropped_page(const Pin& pin, uint32_t page);
  // Whether no other pin covers page `page`.
  bool sole(const Pin& pin, uint32_t page) const;
  uint32_t dropped_slots(const Pin& pin) const;
  // Replaces *kv_entries by the number of dropped KV entries of each page of the pin; empty if all are 0.
  void dropped_entries(const Pin& pin, std::vector<uint16_t>* kv_entries) const;

  uint64_t tick() { return ++clock_; }  // a new stamp
  uint32_t pages_evictable() const override { return evictable_; }
  uint64_t pages_evicted() const { return evicted_; }  // from the gpu, so far
  uint32_t pages_evictable_copied() const { return evictable_copied_; }
  uint32_t pages_spare() const override { return gpu_pool_->pages_free() + evictable_copied_; }
  bool covers(std::span<const uint64_t> reserved) const override {
    return reserved[0] <= uint64_t{gpu_pool_->pages_free()} + evictable_;
  }
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
    uint32_t children_gpu = 0, children_host = 0, children_disk = 0;  // children with pages on that tier
    uint32_t pages = 0;
    uint32_t pages_before = 0;                // pages of the path above
    uint32_t host_count = 0, disk_count = 0;  // elements of `host` on that tier
    uint32_t copied_count = 0;                // GPU pages with a host copy
    uint32_t dropped_slots = 0;               // elements of `gpu` without a page
    uint32_t uses = 0;
    uint64_t stamp = 0;
    uint64_t floor = 0;  // PrefixEviction::floor() at the last use
    uint64_t load = Match::kNoLoad;
    uint64_t name_space = 0;
    uint64_t hash = 0;  // of (parent, name space, first page)
    std::vector<UnitRun> runs;
    std::vector<PageId> gpu;               // the first gpu.size() pages; kNoPage: a dropped slot
    std::vector<PageId> host;              // copies on host or disk; kNoPage: none; empty: the node has none
    std::vector<uint16_t> dropped_tokens;  // dropped KV entries per page; empty: none
    uint32_t first_mark = 0;               // list of the marks on this node
    uint32_t marks_expected = 0, marks_here = 0;  // marks on it or below it, of sessions awaited that way

    uint32_t gpu_pages() const { return static_cast<uint32_t>(gpu.size()) - dropped_slots; }
  };
  struct Owner {
    Awaited awaited = Awaited::kNo;
    uint32_t requests = 0;   // requests that are here
    bool announced = false;  // expect() was called
    bool paused = false;     // and no request has come since; `pause` and `since` are valid
    SessionPause pause{};
    Instant since{};
    std::vector<uint32_t> marks;
  };
  // A request of the session ended on the node: the session uses the node and all nodes above it.
  struct Mark {
    uint32_t session = 0;
    uint32_t node = 0;
    uint32_t next = 0, previous = 0;  // list of the marks on one node
  };
  // A position in an identity.
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
  void trim_units(Node* node, uint64_t units);
  uint32_t pages_like_last(const Node& node) const;
  void drop_host_page(uint32_t id);
  void drop_children(uint32_t id);
  void drop_behind(uint32_t id, uint32_t pages);
  void drop_disk_page(uint32_t id);
  bool take_host_page(uint64_t rank, PageId original, PageId* page);
  void free_host_page(PageId page);
  PageId evict_tail(uint32_t id);
  void lock(uint32_t id);
  void unlock(uint32_t id);
  void file(
      uint32_t id);  // inserts the node into the heaps that it belongs to, and removes it from the others
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
  std::vector<Node> nodes_;  // [0] is the parent of all roots
  std::vector<uint32_t> unused_;
  std::vector<uint32_t> table_;  // open addressing by Node::hash; 0: empty
  IndexedHeap uncopied_, copied_, host_, spill_, disk_;
  std::vector<Owner> owners_;  // by SessionId
  std::vector<Mark> marks_;    // [0] stands for no mark
  std::vector<uint32_t> unused_marks_;
  IndexedHeap waited_for_;  // sessions, ordered by the end of their wait
  mutable std::vector<uint32_t> path_;
  uint64_t clock_ = 0;  // the newest stamp
  uint64_t evicted_ = 0;
  uint32_t evictable_ = 0, evictable_copied_ = 0;
  uint32_t pages_gpu_ = 0, pages_host_ = 0, pages_disk_ = 0, nodes_live_ = 0;
};

// Calls visit(node, from, to) along the path, with pages [from, to) of each node that has some of [first,
// last).
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

#endif  // KVTWIN_ENGINE_KV_STORE_PREFIX_INDEX_H_
