#include "engine/common/request_table.h"

#include <algorithm>
#include <numeric>

#include "engine/base/check.h"

namespace kvtwin::cpu {

uint32_t RequestTableShape::first_in_ring(uint32_t position) const {
  const uint32_t sinks_retained = ring_sinks(), recent = ring_slots() - sinks_retained;
  return std::max(sinks_retained, position + 1 > recent ? position + 1 - recent : 0);
}

uint32_t RequestTableShape::ring_slot(uint32_t position) const {
  const uint32_t sinks_retained = ring_sinks();
  if (position < sinks_retained) return position;
  return sinks_retained + (position - sinks_retained) % (ring_slots() - sinks_retained);
}

void append_place(Place place, std::vector<kernels::ReadRun>* runs) {
  if (!runs->empty()) {
    kernels::ReadRun& last = runs->back();
    if (last.page == place.page && last.first + last.count == place.slot) {
      ++last.count;
      return;
    }
  }
  runs->push_back({place.page, place.slot, 1});
}

RequestTable::RequestTable(const RequestTableShape* shape) : shape_(shape) { clear(); }

void RequestTable::clear() {
  tokens_ = 0;
  groups_.assign(shape_->groups.groups(), {});
  const size_t lists =
      shape_->slot_retention == SlotRetention::kInPlace ? 1 : shape_->groups.heads_per_group();
  for (Group& group : groups_) group.positions.resize(lists);
}

void RequestTable::reuse(std::span<const PageId> pages, const std::vector<bool>& dropped_tokens) {
  KVT_CHECK(shape_->slot_retention == SlotRetention::kInPlace && tokens_ == 0);
  Group& group = groups_[0];
  group.pages.assign(pages.begin(), pages.end());
  tokens_ = static_cast<uint32_t>(pages.size()) * shape_->tables.page_tokens;
  KVT_CHECK(dropped_tokens.size() == tokens_);
  for (uint32_t p = 0; p < tokens_; ++p) {
    if (!dropped_tokens[p]) group.positions[0].push_back(p);
  }
}

void RequestTable::swap_in(const PrefixHit& prefix_hit) {
  if (prefix_hit.kv_entries.empty()) return retable(0, prefix_hit.pages);  // by position
  std::span<const PageId> pages = prefix_hit.pages;
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    KVT_CHECK(shape_->is_ring(g) || groups_[g].positions[0].size() == prefix_hit.kv_entries[g]);
    retable(g, pages.first(prefix_hit.shared[g]));
    pages = pages.subspan(prefix_hit.shared[g]);
  }
}

void RequestTable::allocate(uint32_t group, PageId page) { groups_.at(group).pages.push_back(page); }

void RequestTable::add(uint32_t count, bool stored) {
  for (uint32_t g = 0; stored && g < groups_.size(); ++g) {
    if (shape_->is_ring(g)) continue;
    for (std::vector<uint32_t>& positions : groups_[g].positions) {
      positions.resize(positions.size() + count);  // of a long prompt, for some hundred heads
      std::iota(positions.end() - count, positions.end(), tokens_);
    }
  }
  tokens_ += count;
}

std::span<const uint32_t> RequestTable::positions(uint32_t head) const {
  return list(shape_->groups.group_of(head), shape_->groups.column_of(head));
}

void RequestTable::phases(uint32_t head, uint32_t first, std::vector<uint32_t>* out) const {
  const std::span<const uint32_t> mine = positions(head);
  for (uint32_t kv_entry = first; kv_entry < mine.size(); ++kv_entry)
    out->push_back(shape_->rerotate ? kv_entry : mine[kv_entry]);
}

Place RequestTable::place(uint32_t group, uint32_t kv_entry) const {
  const uint32_t page = shape_->tables.page_tokens;
  const uint32_t at =
      shape_->slot_retention == SlotRetention::kInPlace ? groups_[group].positions[0][kv_entry] : kv_entry;
  KVT_CHECK(at / page < groups_[group].pages.size());
  const PageId id = groups_[group].pages[at / page];
  KVT_CHECK(id != kNoPage);
  return {raw(id), at % page};
}

Place RequestTable::ring_place(uint32_t group, uint32_t position) const {
  const uint32_t page = shape_->tables.page_tokens, at = shape_->ring_slot(position);
  KVT_CHECK(at / page < groups_[group].pages.size());
  return {raw(groups_[group].pages[at / page]), at % page};
}

void RequestTable::reads(uint32_t group, uint32_t count, std::vector<kernels::ReadRun>* runs) const {
  if (shape_->slot_retention == SlotRetention::kInPlace) {
    for (uint32_t kv_entry = 0; kv_entry < count; ++kv_entry) append_place(place(group, kv_entry), runs);
    return;
  }
  const uint32_t page = shape_->tables.page_tokens;
  KVT_CHECK(count <= groups_[group].pages.size() * uint64_t{page});
  for (uint32_t kv_entry = 0; kv_entry < count; kv_entry += page) {
    runs->push_back({raw(groups_[group].pages[kv_entry / page]), 0, std::min(page, count - kv_entry)});
  }
}

void RequestTable::replace(uint32_t head, uint32_t first, std::span<const uint32_t> positions) {
  std::vector<uint32_t>& mine =
      groups_[shape_->groups.group_of(head)].positions[shape_->groups.column_of(head)];
  mine.resize(first);
  mine.insert(mine.end(), positions.begin(), positions.end());
}

void RequestTable::trim() {
  for (Group& group : groups_) {
    group.pages.resize(std::min<size_t>(
        group.pages.size(), div_ceil<size_t>(group.positions[0].size(), shape_->tables.page_tokens)));
  }
}

void RequestTable::check() const {
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    for (const std::vector<uint32_t>& positions : group.positions) {
      KVT_CHECK(positions.size() == group.positions[0].size());
      KVT_CHECK(std::adjacent_find(positions.begin(), positions.end(), std::greater_equal<>()) ==
                positions.end());
      KVT_CHECK(positions.empty() || positions.back() < tokens_);
    }
    const uint64_t room = uint64_t{group.pages.size()} * shape_->tables.page_tokens;
    KVT_CHECK(shape_->slot_retention == SlotRetention::kInPlace || group.positions[0].size() <= room);
  }
}

}  // namespace kvtwin::cpu
