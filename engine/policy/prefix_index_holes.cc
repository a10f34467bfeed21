// Cells that will never be read again, and pages of which none is left (METHODS 3.6, 3.7).

#include <algorithm>

#include "engine/base/check.h"
#include "engine/policy/prefix_index.h"

namespace kvtwin {

void PrefixIndex::mark_dead(const Lease& lease, uint32_t page, uint32_t cells) {
  visit_pages(lease, page, page + 1, [&](uint32_t id, uint32_t from, uint32_t) {
    Node& node = nodes_[id];
    if (node.dead.empty()) node.dead.resize(node.pages, 0);
    node.dead[from] = static_cast<uint16_t>(node.dead[from] + cells);
  });
}

bool PrefixIndex::sole(const Lease& lease, uint32_t page) const {
  bool alone = false;
  visit_pages(lease, page, page + 1, [&](uint32_t id, uint32_t, uint32_t) { alone = nodes_[id].locks == 1; });
  return alone;
}

PageId PrefixIndex::take_dead_page(const Lease& lease, uint32_t page) {
  KVT_CHECK(host_pool_ == nullptr);
  PageId taken = kNoPage;
  visit_pages(lease, page, page + 1, [&](uint32_t id, uint32_t from, uint32_t) {
    Node& node = nodes_[id];
    if (node.locks != 1 || node.gpu[from] == kNoPage) return;
    std::swap(taken, node.gpu[from]);
    ++node.holes;
    --pages_gpu_;
  });
  return taken;
}

uint32_t PrefixIndex::holes(const Lease& lease) const {
  uint32_t count = 0;
  for (uint32_t id = raw(lease.node); id != 0; id = nodes_[id].parent) count += nodes_[id].holes;
  return count;
}

void PrefixIndex::dead_cells(const Lease& lease, std::vector<uint16_t>* cells) const {
  cells->clear();
  visit_pages(lease, 0, lease.pages, [&](uint32_t id, uint32_t from, uint32_t to) {
    const Node& node = nodes_[id];
    if (node.dead.empty()) return;
    cells->resize(node.pages_before + to, 0);
    std::copy(node.dead.begin() + from, node.dead.begin() + to, cells->begin() + node.pages_before + from);
  });
}

uint64_t PrefixIndex::live_tokens(const Lease& lease, uint32_t page_tokens) const {
  uint64_t live = 0;
  visit_pages(lease, 0, lease.pages, [&](uint32_t id, uint32_t from, uint32_t to) {
    live += uint64_t{to - from} * page_tokens;
    const Node& node = nodes_[id];
    for (uint32_t i = from; i < to && !node.dead.empty(); ++i) live -= node.dead[i];
  });
  return live;
}

}  // namespace kvtwin
