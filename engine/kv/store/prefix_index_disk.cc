// PrefixIndex: the disk tier, below the host. Host copies move there before they would be dropped.
//
// A copy is never on both tiers. A page that is loaded from the disk is on the GPU alone and descends again
// tier by tier, so that the pages used last are on the faster tier. Only pages that are not on the GPU are
// spilled, from the tail of a path, which preserves the order GPU, host, disk along every path.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/kv/store/prefix_index.h"

namespace kvtwin {

// REQUIRES: the node is in disk_. Its last page is then on the disk, and it has no children.
void PrefixIndex::drop_disk_page(uint32_t id) {
  const uint32_t last = nodes_[id].pages - 1;
  KVT_CHECK(nodes_[id].first_child == 0);
  KVT_CHECK(on_disk(nodes_[id].host[last]));
  release_copy(id, last);
  trim_last_page(id);
}

bool PrefixIndex::start_spill(uint32_t pages_max, Pin* pin, uint32_t* first, std::vector<PageId>* source,
                              std::vector<PageId>* target) {
  if (disk_pool_ == nullptr || spill_.empty()) return false;
  const uint32_t id = spill_.top();
  const uint64_t rank = spill_.top_rank();
  uint32_t end = nodes_[id].pages;
  while (on_disk(nodes_[id].host[end - 1])) --end;
  const auto alone = end - static_cast<uint32_t>(nodes_[id].gpu.size());
  const uint32_t wanted = std::min(pages_max, alone);
  // Before locking, so that the tail of this same path, which has the same age, may make room. The node
  // itself remains: it has pages on the host.
  while (disk_pool_->pages_free() < wanted && !disk_.empty() && disk_.top_rank() <= rank) {
    drop_disk_page(disk_.top());
  }
  const uint32_t count = std::min(wanted, disk_pool_->pages_free());
  if (count == 0) return false;
  for (uint32_t above = id; above != 0; above = nodes_[above].parent) lock(above);
  const Node& node = nodes_[id];
  source->insert(source->end(), node.host.begin() + (end - count), node.host.begin() + end);
  for (uint32_t i = 0; i < count; ++i) target->push_back(disk_pool_->acquire());
  *pin = {NodeId{id}, node.pages_before + end};
  *first = node.pages_before + end - count;
  return true;
}

void PrefixIndex::spilled(const Pin& pin, uint32_t first, std::span<const PageId> disk) {
  size_t next = 0;
  visit_pages(pin, first, first + static_cast<uint32_t>(disk.size()),
              [&](uint32_t id, uint32_t from, uint32_t to) {
                for (uint32_t i = from; i < to; ++i, ++next) {
                  // Locked by this pin only: a page that returned to the GPU has not left it again.
                  const bool unlocked = nodes_[id].locks == 1;
                  const bool moves = unlocked && i >= nodes_[id].gpu.size();
                  if (!moves) {
                    disk_pool_->release(disk[next], clock_);
                    continue;
                  }
                  free_host_page(nodes_[id].host[i]);
                  set_host(id, i, disk[next]);
                }
              });
  KVT_CHECK(next == disk.size());
  release(pin, false);
}

void PrefixIndex::spill_failed(const Pin& pin, std::span<const PageId> disk) {
  for (const PageId page : disk) disk_pool_->release(page, clock_);
  release(pin, false);
}

// Checks the parts of invariants (3) and (6) that concern the disk.
void PrefixIndex::check_tiers(uint32_t id) const {
  const Node& node = nodes_[id];
  uint32_t disk = 0;
  for (uint32_t i = 0; i < node.host.size(); ++i) {
    if (on_disk(node.host[i])) {
      ++disk;
      KVT_CHECK(i >= node.gpu.size());
    } else {
      KVT_CHECK(disk == 0);
    }
  }
  KVT_CHECK(disk == node.disk_count);
  uint32_t children_disk = 0;
  for (uint32_t child = node.first_child; child != 0; child = nodes_[child].next_sibling) {
    children_disk += nodes_[child].disk_count > 0 ? 1 : 0;
    KVT_CHECK(disk == 0 || nodes_[child].disk_count == nodes_[child].pages);
  }
  KVT_CHECK(children_disk == node.children_disk);
  const bool unlocked = node.locks == 0;
  const bool spills = node.host_count > node.copied_count && node.children_host == 0;
  KVT_CHECK(spill_.contains(id) == (disk_pool_ != nullptr && unlocked && spills));
  KVT_CHECK(disk_.contains(id) == (unlocked && disk > 0 && children_disk == 0));
}

}  // namespace kvtwin
