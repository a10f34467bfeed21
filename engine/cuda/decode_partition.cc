#include "engine/cuda/decode_partition.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/methods/traits.h"

namespace kvtwin::cuda {

DecodePartition::DecodePartition(const PolicySet& set, const GroupMap& groups, const PartitionSpec& spec,
                                 std::vector<uint64_t> planned, const Grid& grid)
    : kind_(partition_kind(set.partition)),
      spec_(spec),
      grid_(grid),
      kv_heads_(set.layout_spec.kv_heads),
      planned_(std::move(planned)) {
  KVT_CHECK(planned_.empty() || planned_.size() == groups.heads());
  KVT_CHECK(lists_splits(kind_) && spec_.tile % kDecodeBlockTokens == 0);
  for (uint32_t head = 0; head < groups.heads(); ++head) {
    const uint32_t first = head / kv_heads_ * kv_heads_;
    uint32_t members = 0;
    for (uint32_t other = first; other < first + kv_heads_; ++other)
      members += groups.group_of(other) == groups.group_of(head);
    members_.push_back(members);
  }
}

void DecodePartition::clear() { rows_.clear(), tokens_.clear(), layers_.clear(), splits_.clear(); }

void DecodePartition::add(uint32_t head, uint32_t kv_entries, uint32_t ranked, uint32_t tokens) {
  rows_.push_back({.kv_entries = kv_entries, .group_rows = members_[head]});
  tokens_.push_back({head, ranked, tokens - ranked});
}

void DecodePartition::end_layer() {
  KVT_CHECK(rows_.size() % kv_heads_ == 0);
  for (size_t first = 0; first < rows_.size(); first += kv_heads_) {
    uint64_t lengths = 0;
    for (size_t i = first; i < first + kv_heads_; ++i) lengths += rows_[i].kv_entries;
    const bool stale = aot_fractions_are_stale(lengths, kv_heads_, tokens_[first].tail);
    for (size_t i = first; i < first + kv_heads_; ++i) {
      const uint64_t fraction = planned_.empty() ? kWhole : planned_[tokens_[i].head];
      const auto ranked =
          static_cast<uint64_t>((static_cast<unsigned __int128>(fraction) * tokens_[i].ranked) >> 32);
      rows_[i].planned_work = ranked + (stale ? tokens_[i].tail : 0);
    }
  }
  plan_partition(kind_, spec_, grid_, rows_, &items_);
  layers_.push_back({static_cast<uint32_t>(splits_.size()), static_cast<uint32_t>(items_.size())});
  for (const SplitItem& item : items_) splits_.push_back({item.row, item.begin, item.end});
  rows_.clear(), tokens_.clear();
}

uint32_t DecodePartition::splits_max() const {
  uint32_t most = 0;
  for (const Part& layer : layers_) most = std::max(most, layer.count);
  return most;
}

}  // namespace kvtwin::cuda
