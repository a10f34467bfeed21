#include "engine/kv/store/prefix_checkpoint_cache.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin {

PrefixCheckpointCache::PrefixCheckpointCache(uint32_t units_per_chunk, uint32_t prefix_checkpoints_max,
                                             const GroupShape& shape,
                                             std::unique_ptr<PrefixEviction> eviction)
    : numbers_(PageId{0}, prefix_checkpoints_max, PageOrder::kLowestFirst),
      index_(units_per_chunk, &numbers_, nullptr, std::move(eviction), this),
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
  }
}

void PrefixCheckpointCache::evict_pages(uint32_t count, std::vector<PageId>* pages) {
  for (uint32_t evicted = 0; evicted < count;) {
    const PrefixCheckpointId id = index_.evict_gpu_page();
    Record& record = records_[raw(id)];
    KVT_CHECK(record.live && !record.held);
    const auto some = static_cast<uint32_t>(record.pages.size());
    pages->insert(pages->end(), record.pages.begin(), record.pages.end());
    pages_ -= some, evictable_ -= some;
    evicted_ += some, evicted += some;
    record = {};
    numbers_.release(id, 0);
  }
}

void PrefixCheckpointCache::check_invariants() const {
  numbers_.check_invariants();
  index_.check_invariants();
  uint32_t all = 0, evictable = 0, live = 0;
  for (const Record& record : records_) {
    if (!record.live) continue;
    ++live;
    all += static_cast<uint32_t>(record.pages.size());
    evictable += record.held ? 0 : static_cast<uint32_t>(record.pages.size());
    for (uint32_t g = 0; g < shape_.groups; ++g) {
      KVT_CHECK(record.settled[g] >= record.before[g]);
      KVT_CHECK(record.starts[g + 1] - record.starts[g] >= record.settled[g] - record.before[g]);
    }
  }
  KVT_CHECK(live == index_.pages_gpu());
  KVT_CHECK(all == pages_ && evictable == evictable_);
}

}  // namespace kvtwin
