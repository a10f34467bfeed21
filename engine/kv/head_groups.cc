#include "engine/kv/head_groups.h"

#include <algorithm>
#include <numeric>

#include "engine/base/check.h"

namespace kvtwin {

std::optional<std::string> validate_layout_spec(const LayoutSpec& spec) {
  const auto number = [](uint64_t value) { return std::to_string(value); };
  if (spec.layers == 0 || spec.kv_heads == 0 || spec.layers > 4'096 ||
      uint64_t{spec.layers} * spec.kv_heads > 65'536) {
    return "a layout of " + number(spec.layers) + " layers with " + number(spec.kv_heads) +
           " KV heads cannot be; 1 to 65,536 heads in all are right";
  }
  if (spec.heads_per_group == 0) return std::nullopt;
  // Groups must divide a layer, or layers must divide a group.
  const bool within = spec.kv_heads % spec.heads_per_group == 0;
  const bool over = spec.heads() % spec.heads_per_group == 0;
  if (spec.clustering == Clustering::kPerLayer ? !within : !over) {
    return "groups of " + number(spec.heads_per_group) + " heads do not divide the " +
           number(spec.clustering == Clustering::kPerLayer ? spec.kv_heads : spec.heads()) +
           " KV heads that they are cut from; choose heads_per_group from its divisors";
  }
  return std::nullopt;
}

GroupMap::GroupMap(const LayoutSpec& spec, std::span<const Fraction> budgets)
    : groups_(spec.groups()), members_(spec.heads()), group_of_(spec.heads()), column_of_(spec.heads()) {
  KVT_CHECK(!validate_layout_spec(spec).has_value());
  KVT_CHECK(budgets.empty() || budgets.size() == spec.heads());
  std::iota(members_.begin(), members_.end(), 0u);
  const uint32_t size = heads_per_group();
  if (spec.clustering != Clustering::kAdjacent && !budgets.empty() && groups_ > 1) {
    const uint32_t scope = spec.clustering == Clustering::kPerLayer ? spec.kv_heads : spec.heads();
    for (uint32_t first = 0; first < spec.heads(); first += scope) {
      // Stable: heads of equal budget remain in (layer, head) order.
      std::stable_sort(members_.begin() + first, members_.begin() + first + scope,
                       [&](uint32_t a, uint32_t b) { return budgets[a] > budgets[b]; });
    }
    for (uint32_t group = 0; group < groups_; ++group) {
      const auto begin = members_.begin() + size_t{group} * size;
      std::sort(begin, begin + size);
    }
  }
  for (uint32_t at = 0; at < spec.heads(); ++at) {
    group_of_[members_[at]] = at / size;
    column_of_[members_[at]] = at % size;
  }
}

std::vector<Fraction> GroupMap::largest(std::span<const Fraction> of_heads) const {
  KVT_CHECK(of_heads.size() == heads());
  std::vector<Fraction> out(groups_, 0);
  for (uint32_t head = 0; head < heads(); ++head) {
    out[group_of_[head]] = std::max(out[group_of_[head]], of_heads[head]);
  }
  return out;
}

}  // namespace kvtwin
