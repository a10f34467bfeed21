#include "engine/kv/store/prefix_checkpoint_cache.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"

namespace kvtwin {

PrefixCheckpointCache::PrefixCheckpointCache(uint32_t units_per_chunk, const Limits& limits,
                                             const GroupShape& shape,
                                             std::unique_ptr<PrefixEviction> eviction, const PageTiers* tiers)
    : tiers_(tiers),
      numbers_(PageId{0}, limits.on_gpu + limits.on_host, PageOrder::kLowestFirst),
      copies_(limits.on_host == 0 ? nullptr
                                  : std::make_unique<PagePool>(PageId{numbers_.pages_total()}, limits.on_host,
                                                               PageOrder::kLowestFirst)),
      originals_(limits.on_host),
      index_(units_per_chunk, &numbers_, copies_.get(), std::move(eviction), this),
      shape_(shape) {}

bool PrefixCheckpointCache::take_number(PrefixCheckpointId* id) {
  if (numbers_.pages_free() == 0) return false;
  *id = numbers_.acquire();
  if (raw(*id) >= records_.size()) records_.resize(raw(*id) + 1);
  return true;
}

PrefixCheckpointId PrefixCheckpointCache::stand_behind(const Pin& pin, uint32_t tokens,
                                                       GroupTables* tables) const {
  KVT_CHECK(pin.pages > 0);
  const PrefixCheckpointId id = index_.last_gpu_page(pin);
  const Record& last = records_[raw(id)];
  tables->stand_behind(tokens, last.kv_entries, last.settled);
  return id;
}

void PrefixCheckpointCache::reuse(const Pin& pin, GroupTables* tables) const {
  path_.clear();
  index_.gpu_pages(pin, &path_);
  const Record& last = records_[raw(path_.back())];
  std::vector<PageId> pages;
  for (uint32_t g = 0; g < shape_.groups; ++g) {
    for (const PrefixCheckpointId id : path_) {
      const Record& record = records_[raw(id)];
      const uint32_t own = record.settled[g] - record.before[g];
      const auto begin = record.pages.begin() + record.starts[g];
      pages.insert(pages.end(), begin, begin + own);
    }
    const uint32_t own = last.settled[g] - last.before[g];
    pages.insert(pages.end(), last.pages.begin() + last.starts[g] + own,
                 last.pages.begin() + last.starts[g + 1]);
  }
  tables->borrow(last.kv_entries, pages);
}

bool PrefixCheckpointCache::insert(uint64_t name_space, std::span<const UnitRun> identity,
                                   PrefixCheckpointId id, uint32_t tokens, uint32_t window,
                                   GroupTables* tables, Pin* pin) {
  Record& record = records_[raw(id)];
  KVT_CHECK(!record.live);
  record = {};
  for (uint32_t g = 0; g < shape_.groups; ++g) {
    const uint32_t kv_entries = tables->kv_entries(g, tokens), before = tables->shared(g);
    const uint32_t settled = std::max(before, settled_pages(kv_entries, window, shape_.page_tokens));
    record.kv_entries.push_back(kv_entries);
    record.before.push_back(before);
    record.settled.push_back(settled);
    record.starts.push_back(static_cast<uint32_t>(record.pages.size()));
    for (uint32_t i = before; i < tables->pages(g); ++i) record.pages.push_back(tables->page(g, i));
  }
  record.starts.push_back(static_cast<uint32_t>(record.pages.size()));
  const PageId number[1] = {id};
  if (record.pages.empty() || !index_.insert(name_space, identity, number, pin)) return false;
  record.live = record.held = true;
  pages_ += static_cast<uint32_t>(record.pages.size());
  tables->lend(record.settled);
  return true;
}

void PrefixCheckpointCache::hold(std::span<const PageId> prefix_checkpoints, bool held) {
  for (const PrefixCheckpointId id : prefix_checkpoints) {
    Record& record = records_[raw(id)];
    KVT_CHECK(record.live && record.held != held);
    record.held = held;
    const auto count = static_cast<uint32_t>(record.pages.size());
    evictable_ += held ? 0 - count : count;
    if (record.copied) evictable_copied_ += held ? 0 - count : count;
  }
}

void PrefixCheckpointCache::evict_pages(uint32_t count, std::vector<PageId>* pages) {
  const size_t wanted = pages->size() + count;
  while (pages->size() < wanted) evict(index_.evict_gpu_page(), pages);
}

void PrefixCheckpointCache::evict(PrefixCheckpointId id, std::vector<PageId>* pages) {
  Record& record = records_[raw(id)];
  KVT_CHECK(record.live && !record.held);
  const auto some = static_cast<uint32_t>(record.pages.size());
  pages->insert(pages->end(), record.pages.begin(), record.pages.end());
  pages_ -= some, evictable_ -= some, evicted_ += some;
  record.pages.clear();
  if (!record.copied) return forget(id);
  evictable_copied_ -= some;
}

void PrefixCheckpointCache::forget(PrefixCheckpointId id) {
  records_[raw(id)] = {};
  numbers_.release(id, 0);
}

// --- copies on the host

bool PrefixCheckpointCache::has_room(PageId id) const {
  return tiers_->host->pages_free() >= records_[raw(id)].pages.size();
}

void PrefixCheckpointCache::copying(PageId id, PageId copy) {
  Record& record = records_[raw(id)];
  KVT_CHECK(record.host_pages.empty());
  originals_[raw(copy) - numbers_.pages_total()] = id;
  for (size_t i = 0; i < record.pages.size(); ++i) record.host_pages.push_back(tiers_->host->acquire());
}

void PrefixCheckpointCache::copy_freed(PageId copy) {
  Record& record = records_[raw(original(copy))];
  const auto count = static_cast<uint32_t>(record.host_pages.size());
  for (const PageId page : record.host_pages) tiers_->host->release(page, 0);
  record.host_pages.clear();
  if (std::exchange(record.copied, false)) {
    pages_host_ -= count;
    if (!record.pages.empty() && !record.held) evictable_copied_ -= count;
  }
  if (record.pages.empty()) forget(original(copy));
}

std::vector<PageId> PrefixCheckpointCache::pages_of(std::span<const PageId> numbers) const {
  std::vector<PageId> pages;
  for (const PageId number : numbers) {
    const std::vector<PageId>& some =
        is_copy(number) ? records_[raw(original(number))].host_pages : records_[raw(number)].pages;
    pages.insert(pages.end(), some.begin(), some.end());
  }
  return pages;
}

void PrefixCheckpointCache::resolve(std::vector<PageId>* source, std::vector<PageId>* target) {
  *source = pages_of(*source);
  *target = pages_of(*target);
}

void PrefixCheckpointCache::resolve_load(std::vector<PageId>* copies, std::vector<PageId>* ids) const {
  for (const PageId copy : *copies) ids->push_back(original(copy));
  *copies = pages_of(*copies);
}

void PrefixCheckpointCache::arrived(std::span<const PageId> numbers, std::span<const PageId> pages) {
  for (const PageId number : numbers) {
    Record& record = records_[raw(is_copy(number) ? original(number) : number)];
    const size_t count = record.host_pages.size();
    if (is_copy(number)) {
      KVT_CHECK(record.held && !record.copied);
      record.copied = true;
      pages_host_ += static_cast<uint32_t>(count);
    } else {
      KVT_CHECK(record.pages.empty() && record.copied);
      record.pages.assign(pages.begin(), pages.begin() + static_cast<ptrdiff_t>(count));
      record.held = true;  // by the transfer's pin
      pages_ += static_cast<uint32_t>(count);
    }
    pages = pages.subspan(count);
  }
  KVT_CHECK(pages.empty());
}

void PrefixCheckpointCache::check_invariants() const {
  numbers_.check_invariants();
  if (copies_) copies_->check_invariants();
  index_.check_invariants();
  uint32_t all = 0, evictable = 0, evictable_copied = 0, host = 0, on_gpu = 0, on_host = 0;
  for (const Record& record : records_) {
    if (!record.live) continue;
    const auto count = static_cast<uint32_t>(record.pages.size());
    KVT_CHECK(count > 0 || record.copied);
    KVT_CHECK(count == 0 || record.host_pages.empty() || record.host_pages.size() == count);
    on_gpu += count > 0 ? 1 : 0;
    on_host += record.copied ? 1 : 0;
    all += count;
    host += record.copied ? static_cast<uint32_t>(record.host_pages.size()) : 0;
    evictable += record.held ? 0 : count;
    evictable_copied += record.held || !record.copied ? 0 : count;
    for (uint32_t g = 0; g < shape_.groups; ++g) {
      KVT_CHECK(record.settled[g] >= record.before[g]);
      KVT_CHECK(record.starts[g + 1] - record.starts[g] >= record.settled[g] - record.before[g]);
    }
  }
  KVT_CHECK(on_gpu == index_.pages_gpu() && on_host == index_.pages_host());
  KVT_CHECK(all == pages_ && evictable == evictable_);
  KVT_CHECK(host == pages_host_ && evictable_copied == evictable_copied_);
}

}  // namespace kvtwin
