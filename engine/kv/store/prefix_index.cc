#include "engine/kv/store/prefix_index.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/prng.h"

namespace kvtwin {

PrefixIndex::PrefixIndex(uint32_t units_per_page, PagePool* gpu, PagePool* host,
                         std::unique_ptr<PrefixEviction> eviction, HoldWatch* watch, PagePool* disk)
    : units_per_page_(units_per_page),
      gpu_pool_(gpu),
      host_pool_(host),
      disk_pool_(disk),
      eviction_(std::move(eviction)),
      watch_(watch),
      needs_sessions_(eviction_->needs_sessions()),
      nodes_(1),
      table_(1024, 0) {
  KVT_CHECK(units_per_page > 0);
  KVT_CHECK(gpu != nullptr);
  KVT_CHECK(disk == nullptr || host != nullptr);
}

// --- pins

Match PrefixIndex::acquire(uint64_t name_space, std::span<const UnitRun> identity, uint32_t pages_max) {
  Match match;
  bool on_gpu = true;
  Cursor cursor{identity};
  uint32_t at = 0;
  uint32_t pages = 0;
  while (pages < pages_max && has_units(cursor, units_per_page_)) {
    const uint32_t child = find_child(at, name_space, hash_first_page(at, name_space, cursor), cursor);
    if (child == 0) break;
    const uint32_t matched =
        std::min(match_units(nodes_[child], cursor) / units_per_page_, pages_max - pages);
    if (matched < nodes_[child].pages) split(child, matched);
    // A split puts the matched part into a new parent.
    const uint32_t taken = nodes_[child].pages_before == pages ? child : nodes_[child].parent;
    Node& node = nodes_[taken];
    lock(taken);
    if (on_gpu) match.pages_gpu += static_cast<uint32_t>(node.gpu.size());
    on_gpu = on_gpu && node.gpu.size() == node.pages;
    if (node.load != Match::kNoLoad) match.load = node.load;
    pages += matched;
    advance(&cursor, uint64_t{matched} * units_per_page_);
    at = taken;
    if (taken != child) break;
  }
  match.pin = {NodeId{at}, pages};
  return match;
}

uint32_t PrefixIndex::find_on_gpu(uint64_t name_space, std::span<const UnitRun> identity,
                                  uint32_t pages_max) const {
  Cursor cursor{identity};
  uint32_t at = 0, pages = 0;
  while (pages < pages_max && has_units(cursor, units_per_page_)) {
    const uint32_t child = find_child(at, name_space, hash_first_page(at, name_space, cursor), cursor);
    if (child == 0) break;
    const Node& node = nodes_[child];
    const uint32_t matched = std::min(match_units(node, cursor) / units_per_page_, pages_max - pages);
    const auto on_gpu = std::min(matched, static_cast<uint32_t>(node.gpu.size()));
    pages += on_gpu;
    if (on_gpu < node.pages) break;
    advance(&cursor, uint64_t{matched} * units_per_page_);
    at = child;
  }
  return pages;
}

void PrefixIndex::release(const Pin& pin, bool used) {
  const uint64_t stamp = used ? tick() : 0;
  for (uint32_t id = raw(pin.node); id != 0; id = nodes_[id].parent) {
    if (used) {
      nodes_[id].stamp = stamp;
      nodes_[id].floor = eviction_->floor();
      ++nodes_[id].uses;
    }
    unlock(id);
  }
}

void PrefixIndex::lock(uint32_t id) {
  Node& node = nodes_[id];
  if (node.locks++ == 0) {
    evictable_ -= node.gpu_pages();
    evictable_copied_ -= node.copied_count;
    if (watch_ != nullptr) watch_->hold(node.gpu, true);
    file(id);
  }
}

void PrefixIndex::unlock(uint32_t id) {
  Node& node = nodes_[id];
  KVT_CHECK(node.locks > 0);
  if (--node.locks == 0) {
    evictable_ += node.gpu_pages();
    evictable_copied_ += node.copied_count;
    if (watch_ != nullptr) watch_->hold(node.gpu, false);
    file(id);
  }
}

bool PrefixIndex::insert(uint64_t name_space, std::span<const UnitRun> identity,
                         std::span<const PageId> pages, Pin* pin, std::span<const uint16_t> dropped_tokens) {
  if (pages.empty()) return true;
  const uint32_t parent = raw(pin->node);
  Cursor cursor{identity};
  advance(&cursor, uint64_t{pin->pages} * units_per_page_);
  const auto count = static_cast<uint32_t>(pages.size());
  const uint64_t units = uint64_t{count} * units_per_page_;
  KVT_CHECK(has_units(cursor, units));
  const auto dropped_slots = static_cast<uint32_t>(std::count(pages.begin(), pages.end(), kNoPage));
  KVT_CHECK(dropped_slots == 0 || host_pool_ == nullptr);
  pages_gpu_ += count - dropped_slots;
  if (parent != 0 && nodes_[parent].locks == 1 && nodes_[parent].first_child == 0) {
    // No other pin covers this leaf: it grows in place, so that a session remains one node.
    Node& leaf = nodes_[parent];
    KVT_CHECK(leaf.gpu.size() == leaf.pages);
    append_runs(cursor, units, &leaf.runs);
    leaf.gpu.insert(leaf.gpu.end(), pages.begin(), pages.end());
    leaf.dropped_slots += dropped_slots;
    if (!dropped_tokens.empty()) {
      leaf.dropped_tokens.resize(leaf.pages, 0);
      leaf.dropped_tokens.insert(leaf.dropped_tokens.end(), dropped_tokens.begin(), dropped_tokens.end());
    }
    leaf.pages += count;
    if (!leaf.host.empty()) leaf.host.resize(leaf.pages, kNoPage);
    if (!leaf.dropped_tokens.empty()) leaf.dropped_tokens.resize(leaf.pages, 0);
    pin->pages += count;
    return true;
  }
  const uint64_t hash = hash_first_page(parent, name_space, cursor);
  if (find_child(parent, name_space, hash, cursor) != 0) {
    pages_gpu_ -= count - dropped_slots;
    return false;
  }
  const uint32_t id = make_node();
  Node& node = nodes_[id];
  node.parent = parent;
  node.name_space = name_space;
  node.hash = hash;
  node.pages = count;
  node.pages_before = pin->pages;
  node.locks = 1;
  append_runs(cursor, units, &node.runs);
  node.gpu.assign(pages.begin(), pages.end());
  node.dropped_slots = dropped_slots;
  if (!dropped_tokens.empty()) {
    node.dropped_tokens.assign(dropped_tokens.begin(), dropped_tokens.end());
    node.dropped_tokens.resize(count, 0);
  }
  Node& above = nodes_[parent];
  node.next_sibling = above.first_child;
  if (above.first_child != 0) nodes_[above.first_child].previous_sibling = id;
  above.first_child = id;
  ++above.children_gpu;
  table_put(hash, id);
  *pin = {NodeId{id}, pin->pages + count};
  return true;
}

void PrefixIndex::gpu_pages(const Pin& pin, std::vector<PageId>* pages) const {
  visit_pages(pin, 0, pin.pages, [&](uint32_t id, uint32_t from, uint32_t to) {
    const Node& node = nodes_[id];
    KVT_CHECK(to <= node.gpu.size());
    pages->insert(pages->end(), node.gpu.begin() + from, node.gpu.begin() + to);
  });
}

void PrefixIndex::host_pages(const Pin& pin, uint32_t first, std::vector<PageId>* pages) const {
  visit_pages(pin, first, pin.pages, [&](uint32_t id, uint32_t from, uint32_t to) {
    const Node& node = nodes_[id];
    for (uint32_t i = from; i < to; ++i) {
      KVT_CHECK(i < node.host.size());
      KVT_CHECK(node.host[i] != kNoPage);
      pages->push_back(node.host[i]);
    }
  });
}

// --- eviction

bool PrefixIndex::tail_is_copied(const Node& node) {
  return !node.host.empty() && node.host[node.gpu.size() - 1] != kNoPage;
}

uint64_t PrefixIndex::rank_of(const Node& node) const {
  return eviction_->rank({node.stamp, node.uses, node.pages_before, node.pages, node.floor, awaited(node)});
}

void PrefixIndex::file(uint32_t id) {
  Node& node = nodes_[id];
  const bool unlocked = node.locks == 0 && node.pages > 0;
  const bool gpu_leaf = unlocked && !node.gpu.empty() && node.children_gpu == 0;
  const bool has_copy = gpu_leaf && tail_is_copied(node);
  const bool host_leaf = unlocked && node.host_count > 0 && node.children_host == 0;
  const bool disk_leaf = unlocked && node.disk_count > 0 && node.children_disk == 0;
  const uint64_t rank = gpu_leaf || host_leaf || disk_leaf ? rank_of(node) : 0;
  if (has_copy)
    copied_.set(id, rank);
  else
    copied_.remove(id);
  if (gpu_leaf && !has_copy)
    uncopied_.set(id, rank);
  else
    uncopied_.remove(id);
  if (host_leaf)
    host_.set(id, rank);
  else
    host_.remove(id);
  if (disk_pool_ == nullptr) return;
  if (host_leaf && node.host_count > node.copied_count)
    spill_.set(id, rank);
  else
    spill_.remove(id);
  if (disk_leaf)
    disk_.set(id, rank);
  else
    disk_.remove(id);
}

uint64_t PrefixIndex::next_eviction_rank() const {
  return copied_.empty() ? uncopied_.top_rank() : copied_.top_rank();
}

PageId PrefixIndex::evict_gpu_page() {
  KVT_CHECK(evictable_ > 0);
  KVT_CHECK(!copied_.empty() || !uncopied_.empty());
  for (;;) {
    const PageId page = evict_tail(copied_.empty() ? uncopied_.top() : copied_.top());
    if (page != kNoPage) return page;
  }
}

void PrefixIndex::evict_pages(uint32_t count, std::vector<PageId>* pages) {
  while (count > 0) {
    const uint32_t id = copied_.empty() ? uncopied_.top() : 0;
    const uint32_t alike = id == 0 ? 0 : std::min(pages_like_last(nodes_[id]), count);
    if (alike == 0) {
      pages->push_back(evict_gpu_page());
      --count;
      continue;
    }
    Node& node = nodes_[id];
    pages->insert(pages->end(), node.gpu.rbegin(), node.gpu.rbegin() + alike);
    node.gpu.resize(node.gpu.size() - alike);
    node.pages -= alike;
    trim_units(&node, uint64_t{alike} * units_per_page_);
    evictable_ -= alike;
    pages_gpu_ -= alike;
    evicted_ += alike;
    count -= alike;
  }
}

// Pages of a leaf that would be evicted one after the other, the last of the node not included: none of them
// has a copy or dropped KV entries, and the node's rank remains the lowest.
uint32_t PrefixIndex::pages_like_last(const Node& node) const {
  const bool plain = node.first_child == 0 && node.host.empty() && node.dropped_slots == 0 &&
                     node.dropped_tokens.empty() && !eviction_->reads_length();
  return plain ? static_cast<uint32_t>(node.gpu.size()) - 1 : 0;
}

PageId PrefixIndex::evict_tail(uint32_t id) {
  Node& node = nodes_[id];
  const bool keeps_copy = tail_is_copied(node);
  eviction_->evicted(rank_of(node));
  const PageId page = node.gpu.back();
  node.gpu.pop_back();
  if (page == kNoPage) {
    --node.dropped_slots;
  } else {
    --evictable_;
    --pages_gpu_;
    ++evicted_;
  }
  if (keeps_copy) {
    --node.copied_count;
    --evictable_copied_;
  } else {
    drop_behind(id, static_cast<uint32_t>(node.gpu.size()) + 1);
  }
  if (node.gpu.empty()) {
    --nodes_[node.parent].children_gpu;
    if (node.parent != 0) file(node.parent);
  }
  if (keeps_copy) {
    file(id);
  } else {
    trim_last_page(id);
  }
  return page;
}

// REQUIRES: the node's last page is on no tier any more.
// Removes the last `units` units of the node's identity.
void PrefixIndex::trim_units(Node* node, uint64_t units) {
  while (units > 0) {
    UnitRun& last = node->runs.back();
    const auto cut = static_cast<uint32_t>(std::min<uint64_t>(units, last.count));
    last.count -= cut;
    units -= cut;
    if (last.count == 0) node->runs.pop_back();
  }
}

void PrefixIndex::trim_last_page(uint32_t id) {
  Node& node = nodes_[id];
  --node.pages;
  if (!node.host.empty()) node.host.pop_back();
  if (!node.dropped_tokens.empty()) node.dropped_tokens.pop_back();
  trim_units(&node, units_per_page_);
  if (node.pages == 0) {
    drop_node(id);
  } else {
    file(id);
  }
}

void PrefixIndex::drop_host_page(uint32_t id) {
  Node& node = nodes_[id];
  uint32_t last = node.pages;
  while (node.host[last - 1] == kNoPage || on_disk(node.host[last - 1])) --last;
  const bool on_gpu = last <= node.gpu.size();
  if (!on_gpu) drop_behind(id, last);
  release_copy(id, last - 1);
  if (on_gpu) {
    file(id);
  } else {
    trim_last_page(id);
  }
}

// Drops children without GPU pages, and all nodes below them. REQUIRES: none is locked.
void PrefixIndex::drop_children(uint32_t id) {
  while (nodes_[id].first_child != 0) {
    const uint32_t child = nodes_[id].first_child;
    drop_children(child);
    Node& node = nodes_[child];
    KVT_CHECK(node.locks == 0);
    KVT_CHECK(node.gpu.empty());
    for (uint32_t i = 0; i < node.pages; ++i) release_copy(child, i);
    node.pages = 0;
    drop_node(child);
  }
}

// Drops the pages after the node's first `pages` pages, which are on lower tiers only and would become
// unreachable.
void PrefixIndex::drop_behind(uint32_t id, uint32_t pages) {
  drop_children(id);
  while (nodes_[id].pages > pages) {
    release_copy(id, nodes_[id].pages - 1);
    trim_last_page(id);
  }
}

void PrefixIndex::release_copy(uint32_t id, uint32_t index) {
  const PageId page = nodes_[id].host[index];
  if (on_disk(page)) {
    disk_pool_->release(page, clock_);
  } else {
    free_host_page(page);
  }
  set_host(id, index, kNoPage);
}

void PrefixIndex::set_host(uint32_t id, uint32_t index, PageId page) {
  Node& node = nodes_[id];
  if (node.host.empty()) node.host.resize(node.pages, kNoPage);
  const PageId before = node.host[index];
  node.host[index] = page;
  count_copy(id, index, before, false);
  count_copy(id, index, page, true);
  if (node.host_count + node.disk_count == 0) node.host.clear();
}

// Updates the counts: the copy of page `index` now exists (`has`), or no longer does.
void PrefixIndex::count_copy(uint32_t id, uint32_t index, PageId page, bool has) {
  if (page == kNoPage) return;
  Node& node = nodes_[id];
  const bool disk = on_disk(page);
  const auto change = has ? 1u : ~0u;  // +1 or -1, modulo 2^32
  uint32_t& count = disk ? node.disk_count : node.host_count;
  count += change;
  (disk ? pages_disk_ : pages_host_) += change;
  if (index < node.gpu.size() && !disk) {
    node.copied_count += change;
    if (node.locks == 0) evictable_copied_ += change;
  }
  if (count == (has ? 1u : 0u)) {
    Node& above = nodes_[node.parent];
    (disk ? above.children_disk : above.children_host) += change;
    if (node.parent != 0) file(node.parent);
  }
}

// --- the host tier

// A page for a copy of `original`; only copies of a lower rank make room.
bool PrefixIndex::take_host_page(uint64_t rank, PageId original, PageId* page) {
  while (host_pool_->pages_free() == 0 || (watch_ != nullptr && !watch_->has_room(original))) {
    if (host_.empty() || host_.top_rank() >= rank) return false;
    drop_host_page(host_.top());
  }
  *page = host_pool_->acquire();
  if (watch_ != nullptr) watch_->copying(original, *page);
  return true;
}

void PrefixIndex::free_host_page(PageId page) {
  if (watch_ != nullptr) watch_->copy_freed(page);
  host_pool_->release(page, clock_);
}

bool PrefixIndex::drop_oldest_copy() {
  if (host_.empty()) return false;
  drop_host_page(host_.top());
  return true;
}

PrefixIndex::Offload PrefixIndex::start_offload(uint32_t pages_max, Pin* pin, uint32_t* first,
                                                std::vector<PageId>* source, std::vector<PageId>* target) {
  if (host_pool_ == nullptr || uncopied_.empty()) return Offload::kNothingToOffload;
  const uint32_t id = uncopied_.top();
  const uint64_t rank = uncopied_.top_rank();
  // Lock first: making room on the host must not drop the page that is about to be copied.
  for (uint32_t above = id; above != 0; above = nodes_[above].parent) lock(above);
  const Node& node = nodes_[id];
  const auto end = static_cast<uint32_t>(node.gpu.size());
  uint32_t begin = end;
  const size_t targets_before = target->size();
  PageId page;
  while (begin > 0 && end - begin < pages_max && (node.host.empty() || node.host[begin - 1] == kNoPage) &&
         take_host_page(rank, node.gpu[begin - 1], &page)) {
    target->push_back(page);
    --begin;
  }
  if (begin == end) {
    for (uint32_t above = id; above != 0; above = nodes_[above].parent) unlock(above);
    return Offload::kHostHoldsNewer;
  }
  std::reverse(target->begin() + static_cast<ptrdiff_t>(targets_before), target->end());
  source->insert(source->end(), node.gpu.begin() + begin, node.gpu.begin() + end);
  *pin = {NodeId{id}, node.pages_before + end};
  *first = node.pages_before + begin;
  return Offload::kStarted;
}

void PrefixIndex::offloaded(const Pin& pin, uint32_t first, std::span<const PageId> host) {
  size_t next = 0;
  // No other offload of the same page can be in progress: the pin keeps it out of uncopied_.
  visit_pages(pin, first, first + static_cast<uint32_t>(host.size()),
              [&](uint32_t id, uint32_t from, uint32_t to) {
                for (uint32_t i = from; i < to; ++i) set_host(id, i, host[next++]);
              });
  KVT_CHECK(next == host.size());
  release(pin, false);
}

void PrefixIndex::offload_failed(const Pin& pin, std::span<const PageId> host) {
  for (const PageId page : host) free_host_page(page);
  release(pin, false);
}

void PrefixIndex::loaded(const Pin& pin, uint32_t first, std::span<const PageId> gpu) {
  size_t next = 0;
  visit_pages(pin, first, first + static_cast<uint32_t>(gpu.size()),
              [&](uint32_t id, uint32_t from, uint32_t to) {
                Node& node = nodes_[id];
                KVT_CHECK(node.gpu.size() == from);
                if (node.gpu.empty()) ++nodes_[node.parent].children_gpu;
                for (uint32_t i = from; i < to; ++i) {
                  const bool from_disk = on_disk(node.host[i]);
                  if (from_disk) release_copy(id, i);
                  node.gpu.push_back(gpu[next++]);
                  if (!from_disk && node.host[i] != kNoPage) ++node.copied_count;
                }
              });
  KVT_CHECK(next == gpu.size());
  pages_gpu_ += static_cast<uint32_t>(gpu.size());
  load_failed(pin, first);
}

void PrefixIndex::start_load(const Pin& pin, uint32_t first, uint64_t load) {
  visit_pages(pin, first, pin.pages, [&](uint32_t id, uint32_t, uint32_t) { nodes_[id].load = load; });
}

void PrefixIndex::load_failed(const Pin& pin, uint32_t first) {
  visit_pages(pin, first, pin.pages,
              [&](uint32_t id, uint32_t, uint32_t) { nodes_[id].load = Match::kNoLoad; });
}

}  // namespace kvtwin
