// PrefixIndex: KV entries that will never be read again, and pages without retained KV entries
// (docs/design/methods/intentkv.md#dead-slot, #freeing).

#include <algorithm>

#include "engine/base/check.h"
#include "engine/kv/store/prefix_index.h"

namespace kvtwin {

void PrefixIndex::mark_dropped(const Pin& pin, uint32_t page, uint32_t kv_entries) {
  visit_pages(pin, page, page + 1, [&](uint32_t id, uint32_t from, uint32_t) {
    Node& node = nodes_[id];
    if (node.dropped_tokens.empty()) node.dropped_tokens.resize(node.pages, 0);
    node.dropped_tokens[from] = static_cast<uint16_t>(node.dropped_tokens[from] + kv_entries);
  });
}

bool PrefixIndex::sole(const Pin& pin, uint32_t page) const {
  bool alone = false;
  visit_pages(pin, page, page + 1, [&](uint32_t id, uint32_t, uint32_t) { alone = nodes_[id].locks == 1; });
  return alone;
}

PageId PrefixIndex::take_dropped_page(const Pin& pin, uint32_t page) {
  KVT_CHECK(host_pool_ == nullptr);
  PageId taken = kNoPage;
  visit_pages(pin, page, page + 1, [&](uint32_t id, uint32_t from, uint32_t) {
    Node& node = nodes_[id];
    if (node.locks != 1 || node.gpu[from] == kNoPage) return;
    std::swap(taken, node.gpu[from]);
    ++node.dropped_slots;
    --pages_gpu_;
  });
  return taken;
}

uint32_t PrefixIndex::dropped_slots(const Pin& pin) const {
  uint32_t count = 0;
  for (uint32_t id = raw(pin.node); id != 0; id = nodes_[id].parent) count += nodes_[id].dropped_slots;
  return count;
}

void PrefixIndex::dropped_entries(const Pin& pin, std::vector<uint16_t>* kv_entries) const {
  kv_entries->clear();
  visit_pages(pin, 0, pin.pages, [&](uint32_t id, uint32_t from, uint32_t to) {
    const Node& node = nodes_[id];
    if (node.dropped_tokens.empty()) return;
    kv_entries->resize(node.pages_before + to, 0);
    std::copy(node.dropped_tokens.begin() + from, node.dropped_tokens.begin() + to,
              kv_entries->begin() + node.pages_before + from);
  });
}

}  // namespace kvtwin
