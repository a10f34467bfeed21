// PrefixIndex: nodes, identities, and the hash table that finds a child by its first page.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/prng.h"
#include "engine/kv/store/prefix_index.h"

namespace kvtwin {

void PrefixIndex::advance(Cursor* cursor, uint64_t units) {
  while (units > 0 && cursor->run < cursor->runs.size()) {
    const uint32_t left = cursor->runs[cursor->run].count - cursor->offset;
    if (units < left) {
      cursor->offset += static_cast<uint32_t>(units);
      return;
    }
    units -= left;
    ++cursor->run;
    cursor->offset = 0;
  }
}

bool PrefixIndex::has_units(Cursor cursor, uint64_t units) {
  for (; cursor.run < cursor.runs.size(); ++cursor.run, cursor.offset = 0) {
    const uint32_t left = cursor.runs[cursor.run].count - cursor.offset;
    if (left >= units) return true;
    units -= left;
  }
  return units == 0;
}

// Hashes unit by unit, so that the result does not depend on how the runs are divided.
uint64_t PrefixIndex::hash_first_page(uint32_t parent, uint64_t name_space, Cursor cursor) const {
  uint64_t hash = mix64((uint64_t{parent} << 32) ^ mix64(name_space));
  for (uint32_t unit = 0; unit < units_per_page_; ++unit) {
    while (cursor.run < cursor.runs.size() && cursor.offset == cursor.runs[cursor.run].count) {
      ++cursor.run;
      cursor.offset = 0;
    }
    const UnitRun& run = cursor.runs[cursor.run];
    hash = mix64(hash ^ mix64(run.space) ^ (run.first + cursor.offset)) + 0x9e3779b97f4a7c15u;
    ++cursor.offset;
  }
  return hash;
}

// Number of units, from the node's start, in which the node and the cursor agree.
uint32_t PrefixIndex::match_units(const Node& node, Cursor cursor) const {
  uint32_t matched = 0;
  for (const UnitRun& mine : node.runs) {
    uint32_t offset = 0;
    while (offset < mine.count) {
      while (cursor.run < cursor.runs.size() && cursor.offset == cursor.runs[cursor.run].count) {
        ++cursor.run;
        cursor.offset = 0;
      }
      if (cursor.run == cursor.runs.size()) return matched;
      const UnitRun& theirs = cursor.runs[cursor.run];
      if (mine.space != theirs.space || mine.first + offset != theirs.first + cursor.offset) return matched;
      const uint32_t same = std::min(mine.count - offset, theirs.count - cursor.offset);
      matched += same;
      offset += same;
      cursor.offset += same;
    }
  }
  return matched;
}

void PrefixIndex::append_runs(Cursor cursor, uint64_t units, std::vector<UnitRun>* runs) const {
  while (units > 0) {
    const UnitRun& run = cursor.runs[cursor.run];
    const auto count = static_cast<uint32_t>(std::min<uint64_t>(units, run.count - cursor.offset));
    if (count > 0) {
      const uint64_t first = run.first + cursor.offset;
      if (!runs->empty() && runs->back().space == run.space &&
          runs->back().first + runs->back().count == first) {
        runs->back().count += count;
      } else {
        runs->push_back({run.space, first, count});
      }
    }
    units -= count;
    ++cursor.run;
    cursor.offset = 0;
  }
}

uint32_t PrefixIndex::find_child(uint32_t parent, uint64_t name_space, uint64_t hash,
                                 const Cursor& cursor) const {
  const size_t mask = table_.size() - 1;
  for (size_t at = hash & mask; table_[at] != 0; at = (at + 1) & mask) {
    const Node& node = nodes_[table_[at]];
    if (node.hash == hash && node.parent == parent && node.name_space == name_space &&
        match_units(node, cursor) >= units_per_page_) {
      return table_[at];
    }
  }
  return 0;
}

uint32_t PrefixIndex::make_node() {
  ++nodes_live_;
  if (unused_.empty()) {
    nodes_.emplace_back();
    return static_cast<uint32_t>(nodes_.size() - 1);
  }
  const uint32_t id = unused_.back();
  unused_.pop_back();
  return id;
}

// REQUIRES: the node has no pages, children or locks.
void PrefixIndex::drop_node(uint32_t id) {
  Node& node = nodes_[id];
  KVT_CHECK(node.first_child == 0);
  KVT_CHECK(node.locks == 0);
  lift_marks(id);
  table_erase(node.hash, id);
  if (node.previous_sibling != 0) {
    nodes_[node.previous_sibling].next_sibling = node.next_sibling;
  } else {
    nodes_[node.parent].first_child = node.next_sibling;
  }
  if (node.next_sibling != 0) nodes_[node.next_sibling].previous_sibling = node.previous_sibling;
  uncopied_.remove(id);
  copied_.remove(id);
  host_.remove(id);
  spill_.remove(id);
  disk_.remove(id);
  node = Node{};
  unused_.push_back(id);
  --nodes_live_;
}

// `upper` replaces `id` among its siblings and becomes its parent. The caller sets the parent of `id`.
void PrefixIndex::stand_above(uint32_t upper_id, uint32_t id) {
  const Node& lower = nodes_[id];
  Node& upper = nodes_[upper_id];
  upper.parent = lower.parent;
  upper.first_child = id;
  upper.previous_sibling = lower.previous_sibling;
  upper.next_sibling = lower.next_sibling;
  if (upper.previous_sibling != 0)
    nodes_[upper.previous_sibling].next_sibling = upper_id;
  else
    nodes_[upper.parent].first_child = upper_id;
  if (upper.next_sibling != 0) nodes_[upper.next_sibling].previous_sibling = upper_id;
}

// Splits a node: a new parent takes the first `pages` pages; `id` keeps the rest, its children and its pins,
// which cover both.
void PrefixIndex::split(uint32_t id, uint32_t pages) {
  const uint32_t upper_id = make_node();
  Node& lower = nodes_[id];
  Node& upper = nodes_[upper_id];
  KVT_CHECK(pages > 0 && pages < lower.pages);
  stand_above(upper_id, id);
  upper.locks = lower.locks;
  upper.pages = pages;
  upper.pages_before = lower.pages_before;
  upper.uses = lower.uses;
  upper.stamp = lower.stamp;
  upper.floor = lower.floor;
  upper.marks_expected = lower.marks_expected;
  upper.marks_here = lower.marks_here;
  upper.name_space = lower.name_space;
  upper.hash = lower.hash;

  std::vector<UnitRun> runs = std::move(lower.runs);
  lower.runs.clear();
  const Cursor start{runs};
  Cursor cut{runs};
  advance(&cut, uint64_t{pages} * units_per_page_);
  append_runs(start, uint64_t{pages} * units_per_page_, &upper.runs);
  append_runs(cut, uint64_t{lower.pages - pages} * units_per_page_, &lower.runs);

  const auto split_list = [pages](auto* from, auto* to) {
    const size_t count = std::min<size_t>(pages, from->size());
    to->assign(from->begin(), from->begin() + static_cast<ptrdiff_t>(count));
    from->erase(from->begin(), from->begin() + static_cast<ptrdiff_t>(count));
  };
  const bool lower_was_on_gpu = !lower.gpu.empty();
  const bool lower_was_on_host = lower.host_count > 0, lower_was_on_disk = lower.disk_count > 0;
  split_list(&lower.gpu, &upper.gpu);
  split_list(&lower.host, &upper.host);
  split_list(&lower.dropped_tokens, &upper.dropped_tokens);
  const auto count_copies = [this](Node* node) {
    node->dropped_slots = static_cast<uint32_t>(std::count(node->gpu.begin(), node->gpu.end(), kNoPage));
    node->host_count = node->disk_count = node->copied_count = 0;
    for (size_t i = 0; i < node->host.size(); ++i) {
      if (node->host[i] == kNoPage) continue;
      ++(on_disk(node->host[i]) ? node->disk_count : node->host_count);
      if (i < node->gpu.size()) ++node->copied_count;
    }
    if (node->host_count + node->disk_count == 0) node->host.clear();
  };
  // Pages on the GPU are not being loaded.
  if (upper.gpu.size() < pages) upper.load = lower.load;
  count_copies(&upper);
  count_copies(&lower);
  upper.children_gpu = lower.gpu.empty() ? 0 : 1;
  upper.children_host = lower.host_count > 0 ? 1 : 0;
  upper.children_disk = lower.disk_count > 0 ? 1 : 0;
  if (lower_was_on_gpu && upper.gpu.empty()) --nodes_[upper.parent].children_gpu;
  if (lower_was_on_host && upper.host_count == 0) --nodes_[upper.parent].children_host;
  if (lower_was_on_disk && upper.disk_count == 0) --nodes_[upper.parent].children_disk;

  lower.pages -= pages;
  lower.pages_before += pages;
  lower.parent = upper_id;
  lower.previous_sibling = lower.next_sibling = 0;
  table_replace(upper.hash, id, upper_id);
  lower.hash = hash_first_page(upper_id, lower.name_space, Cursor{lower.runs});
  table_put(lower.hash, id);
  file(upper_id);
  file(id);
  if (upper.parent != 0) file(upper.parent);
}

// --- the hash table: linear probing, deletion by backward shift

void PrefixIndex::table_put(uint64_t hash, uint32_t id) {
  if (2 * (nodes_live_ + 1) > table_.size()) table_grow();
  const size_t mask = table_.size() - 1;
  size_t at = hash & mask;
  while (table_[at] != 0) at = (at + 1) & mask;
  table_[at] = id;
}

void PrefixIndex::table_replace(uint64_t hash, uint32_t from, uint32_t to) {
  const size_t mask = table_.size() - 1;
  size_t at = hash & mask;
  while (table_[at] != from) {
    KVT_CHECK(table_[at] != 0);
    at = (at + 1) & mask;
  }
  table_[at] = to;
}

void PrefixIndex::table_erase(uint64_t hash, uint32_t id) {
  const size_t mask = table_.size() - 1;
  size_t hole = hash & mask;
  while (table_[hole] != id) {
    KVT_CHECK(table_[hole] != 0);
    hole = (hole + 1) & mask;
  }
  table_[hole] = 0;
  for (size_t at = (hole + 1) & mask; table_[at] != 0; at = (at + 1) & mask) {
    const size_t home_slot = nodes_[table_[at]].hash & mask;
    // The entry may move into the gap if the gap is on its cyclic probe path.
    if (((at - home_slot) & mask) >= ((at - hole) & mask)) {
      table_[hole] = table_[at];
      table_[at] = 0;
      hole = at;
    }
  }
}

void PrefixIndex::table_grow() {
  std::vector<uint32_t> old(table_.size() * 2, 0);
  old.swap(table_);
  const size_t mask = table_.size() - 1;
  for (const uint32_t id : old) {
    if (id == 0) continue;
    size_t at = nodes_[id].hash & mask;
    while (table_[at] != 0) at = (at + 1) & mask;
    table_[at] = id;
  }
}

void PrefixIndex::check_invariants() const {
  uint32_t evictable = 0, evictable_copied = 0, gpu = 0, host = 0, disk = 0, live = 0;
  for (uint32_t id = 1; id < nodes_.size(); ++id) {
    const Node& node = nodes_[id];
    if (node.pages == 0) continue;
    ++live;
    uint32_t child_locks = 0, children_gpu = 0, children_host = 0;
    for (uint32_t child = node.first_child; child != 0; child = nodes_[child].next_sibling) {
      KVT_CHECK(nodes_[child].parent == id);
      KVT_CHECK(nodes_[child].pages_before == node.pages_before + node.pages);
      child_locks += nodes_[child].locks;
      children_gpu += nodes_[child].gpu.empty() ? 0 : 1;
      children_host += nodes_[child].host_count > 0 ? 1 : 0;
      KVT_CHECK(nodes_[child].gpu.empty() || node.gpu.size() == node.pages);
    }
    KVT_CHECK(child_locks <= node.locks);
    KVT_CHECK(children_gpu == node.children_gpu);
    KVT_CHECK(children_host == node.children_host);
    KVT_CHECK(node.gpu.size() <= node.pages);
    KVT_CHECK(node.host.empty() || node.host.size() == node.pages);
    uint64_t units = 0;
    for (const UnitRun& run : node.runs) units += run.count;
    KVT_CHECK(units == uint64_t{node.pages} * units_per_page_);
    uint32_t copies = 0, has_copy = 0, dropped_slots = 0;
    for (uint32_t i = 0; i < node.pages; ++i) {
      const bool copied = !node.host.empty() && node.host[i] != kNoPage;
      KVT_CHECK(i < node.gpu.size() || copied);
      copies += copied ? 1 : 0;
      has_copy += copied && i < node.gpu.size() ? 1 : 0;
      if (i < node.gpu.size() && node.gpu[i] == kNoPage)
        ++dropped_slots;
      else if (i < node.gpu.size())
        KVT_CHECK(gpu_pool_->owned(node.gpu[i]));
      if (copied) KVT_CHECK((on_disk(node.host[i]) ? disk_pool_ : host_pool_)->owned(node.host[i]));
    }
    KVT_CHECK(copies == node.host_count + node.disk_count);
    KVT_CHECK(has_copy == node.copied_count);
    KVT_CHECK(dropped_slots == node.dropped_slots);
    KVT_CHECK(node.dropped_tokens.empty() || node.dropped_tokens.size() == node.pages);
    gpu += node.gpu_pages();
    host += node.host_count;
    disk += node.disk_count;
    if (node.locks == 0) {
      evictable += node.gpu_pages();
      evictable_copied += has_copy;
    }
    const bool gpu_leaf = node.locks == 0 && !node.gpu.empty() && node.children_gpu == 0;
    KVT_CHECK((copied_.contains(id) || uncopied_.contains(id)) == gpu_leaf);
    KVT_CHECK(!(copied_.contains(id) && uncopied_.contains(id)));
    KVT_CHECK(host_.contains(id) == (node.locks == 0 && node.host_count > 0 && node.children_host == 0));
    check_tiers(id);
    KVT_CHECK(find_child(node.parent, node.name_space, node.hash, Cursor{node.runs}) == id);
  }
  check_marks();
  KVT_CHECK(live == nodes_live_);
  KVT_CHECK(evictable == evictable_);
  KVT_CHECK(evictable_copied == evictable_copied_);
  KVT_CHECK(gpu == pages_gpu_);
  KVT_CHECK(host == pages_host_);
  KVT_CHECK(disk == pages_disk_);
}

}  // namespace kvtwin
