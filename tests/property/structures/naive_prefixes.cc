#include "tests/property/structures/naive_prefixes.h"

#include <algorithm>

namespace kvtwin::testing {

NaivePrefixes::Key NaivePrefixes::key(uint64_t name_space, const Units& units, uint32_t index) const {
  const auto end = static_cast<ptrdiff_t>((index + 1) * units_per_page_);
  return {name_space, Units(units.begin(), units.begin() + end)};
}

uint32_t NaivePrefixes::match(uint64_t name_space, const Units& units, uint32_t pages_max) const {
  uint32_t pages = 0;
  while (pages < pages_max && (pages + 1) * units_per_page_ <= units.size() &&
         knows(name_space, units, pages)) {
    ++pages;
  }
  return pages;
}

bool NaivePrefixes::knows(uint64_t name_space, const Units& units, uint32_t index) const {
  return pages_.contains(key(name_space, units, index));
}

NaivePrefixes::Page& NaivePrefixes::page(uint64_t name_space, const Units& units, uint32_t index) {
  return pages_.at(key(name_space, units, index));
}

void NaivePrefixes::add(uint64_t name_space, const Units& units, uint32_t index, PageId gpu) {
  Page& page = pages_[key(name_space, units, index)];
  page.gpu = gpu;
  page.locks = 1;
}

void NaivePrefixes::lock(uint64_t name_space, const Units& units, uint32_t pages) {
  for (uint32_t i = 0; i < pages; ++i) ++page(name_space, units, i).locks;
}

void NaivePrefixes::unlock(uint64_t name_space, const Units& units, uint32_t pages, bool used) {
  if (used) ++clock;
  for (uint32_t i = 0; i < pages; ++i) {
    --page(name_space, units, i).locks;
    if (used) page(name_space, units, i).stamp = clock;
  }
}

uint32_t NaivePrefixes::pages_on_gpu(uint64_t name_space, const Units& units, uint32_t pages) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < pages; ++i) count += page(name_space, units, i).gpu ? 1 : 0;
  return count;
}

// All keys that continue `key` follow it in the map.
template <typename Visit>
void NaivePrefixes::each_behind(const Key& key, Visit visit) const {
  for (auto it = pages_.upper_bound(key); it != pages_.end(); ++it) {
    const auto& [name_space, units] = it->first;
    if (name_space != key.first || units.size() <= key.second.size()) return;
    if (!std::equal(key.second.begin(), key.second.end(), units.begin())) return;
    visit(it->first, it->second);
  }
}

const NaivePrefixes::Key* NaivePrefixes::next_out(bool has_copy) const {
  const Key* next = nullptr;
  uint64_t stamp = UINT64_MAX;
  for (const auto& [key, page] : pages_) {
    if (!page.gpu || page.locks > 0 || page.host.has_value() != has_copy || page.stamp >= stamp) continue;
    bool last = true;
    each_behind(key, [&](const Key&, const Page& behind) { last = last && !behind.gpu; });
    if (!last) continue;
    next = &key;
    stamp = page.stamp;
  }
  return next;
}

PageId NaivePrefixes::evict(Key key) {
  Page& page = pages_.at(key);
  const PageId gpu = *page.gpu;
  page.gpu.reset();
  if (page.host) return gpu;
  std::vector<Key> lost{key};
  each_behind(key, [&](const Key& behind, const Page&) { lost.push_back(behind); });
  for (const Key& dropped : lost) pages_.erase(dropped);
  return gpu;
}

const NaivePrefixes::Key* NaivePrefixes::find_host(PageId host) const {
  for (const auto& [key, page] : pages_) {
    if (page.host == host) return &key;
  }
  return nullptr;
}

// A page that is on the host only may be dropped if all its successors are on the disk.
bool NaivePrefixes::may_lose_copy(const Key& key) const {
  const Page& page = pages_.at(key);
  if (page.locks > 0) return false;
  if (page.gpu) return true;
  bool last = true;
  each_behind(key, [&](const Key&, const Page& behind) { last = last && behind.disk; });
  return last;
}

void NaivePrefixes::lose_copy(const Key& key) {
  Page& page = pages_.at(key);
  page.host.reset();
  if (page.gpu) return;
  std::vector<Key> lost{key};
  each_behind(key, [&](const Key& behind, const Page&) { lost.push_back(behind); });
  for (const Key& dropped : lost) pages_.erase(dropped);
}

bool NaivePrefixes::may_spill(const Key& key) const {
  const Page& page = pages_.at(key);
  bool last = true;
  each_behind(key, [&](const Key&, const Page& behind) { last = last && !behind.host; });
  return page.host && !page.gpu && page.locks == 0 && last;
}

const NaivePrefixes::Key* NaivePrefixes::next_spill(const std::function<bool(const Key&)>& shielded) const {
  const Key* next = nullptr;
  uint64_t stamp = UINT64_MAX;
  for (const auto& [key, page] : pages_) {
    if (page.stamp >= stamp || !may_spill(key) || shielded(key)) continue;
    next = &key;
    stamp = page.stamp;
  }
  return next;
}

const NaivePrefixes::Key* NaivePrefixes::find_disk(PageId disk) const {
  for (const auto& [key, page] : pages_) {
    if (page.disk == disk) return &key;
  }
  return nullptr;
}

bool NaivePrefixes::may_leave_disk(const Key& key, uint64_t stamp) const {
  const Page& page = pages_.at(key);
  bool last = true;
  each_behind(key, [&](const Key&, const Page&) { last = false; });
  return page.disk && page.locks == 0 && last && page.stamp <= stamp;
}

bool NaivePrefixes::any_may_leave_disk(uint64_t stamp,
                                       const std::function<bool(const Key&)>& shielded) const {
  return std::any_of(pages_.begin(), pages_.end(), [&](const auto& entry) {
    return may_leave_disk(entry.first, stamp) && !shielded(entry.first);
  });
}

uint32_t NaivePrefixes::count_disk() const {
  return static_cast<uint32_t>(std::count_if(
      pages_.begin(), pages_.end(), [](const auto& entry) { return entry.second.disk.has_value(); }));
}

uint32_t NaivePrefixes::count_gpu() const {
  return static_cast<uint32_t>(std::count_if(pages_.begin(), pages_.end(),
                                             [](const auto& entry) { return entry.second.gpu.has_value(); }));
}

uint32_t NaivePrefixes::count_host() const {
  return static_cast<uint32_t>(std::count_if(
      pages_.begin(), pages_.end(), [](const auto& entry) { return entry.second.host.has_value(); }));
}

uint32_t NaivePrefixes::count_evictable(bool copied_only) const {
  return static_cast<uint32_t>(std::count_if(pages_.begin(), pages_.end(), [&](const auto& entry) {
    const Page& page = entry.second;
    return page.gpu && page.locks == 0 && (!copied_only || page.host);
  }));
}

}  // namespace kvtwin::testing
