#include "engine/common/kv_entry_budget.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/common/side_by_side.h"

namespace kvtwin::cpu {
namespace {

// KV entries of all heads. With fewer, starting threads costs more than it saves.
constexpr size_t kFewKvEntries = 1 << 16;

// Scores and positions of the candidates of several heads, with the same number of candidates each.
struct Pool {
  std::vector<float> scores;
  std::vector<uint32_t> positions;
  uint32_t heads = 0, rows = 0;

  explicit Pool(std::span<const RankedHead> from) : heads(static_cast<uint32_t>(from.size())) {
    for (const RankedHead& head : from) {
      size_t next = 0;
      for (uint32_t row = 0; row < head.rows(); ++row) {
        if (next < head.forced.size() && head.forced[next] == row) {
          ++next;
          continue;
        }
        scores.push_back(head.scores[row]);
        positions.push_back(head.positions[row]);
      }
    }
    rows = heads == 0 ? 0 : static_cast<uint32_t>(scores.size() / heads);
    KVT_CHECK(scores.size() == size_t{heads} * rows);
  }
  // Valid while the pool is unchanged.
  kernels::Ranked ranked() { return {kernels::packed_scores(scores, heads, rows), {rows, positions}}; }
};

}  // namespace

KvEntryBudget::KvEntryBudget(const PolicySet& set, uint32_t page_tokens, const GroupMap* groups)
    : rule_(set, page_tokens), kv_heads_(set.layout_spec.kv_heads), groups_(groups) {}

std::vector<GroupEntries> KvEntryBudget::entries(std::span<const RankedHead> heads, uint32_t end) const {
  std::vector<GroupEntries> out(groups_->groups());
  for (const RankedHead& head : heads) {
    const uint32_t fixed = head.first + static_cast<uint32_t>(head.forced.size());
    out[groups_->group_of(head.head)] = {end, fixed, head.candidates()};
  }
  return out;
}

std::vector<uint32_t> KvEntryBudget::counts(std::span<const RankedHead> heads, uint32_t end) const {
  KVT_CHECK(rule_.counted_by() != CountedBy::kNothing);
  return rule_.finish(
      rule_.counted_by() == CountedBy::kAllLayers ? across_layers(heads, end) : by_layer(heads, end),
      entries(heads, end));
}

std::vector<CountRule::Ranked> KvEntryBudget::by_layer(std::span<const RankedHead> heads,
                                                       uint32_t end) const {
  std::vector<std::vector<CountRule::Ranked>> found(heads.size() / kv_heads_);
  const auto count = [&](uint32_t l) {
    found[l] = of_layer(heads.subspan(size_t{l} * kv_heads_, kv_heads_), end);
  };
  const size_t kv_entries = heads.empty() ? 0 : heads.size() * heads[0].rows();
  if (kv_entries < kFewKvEntries) {
    for (uint32_t l = 0; l < found.size(); ++l) count(l);
  } else {
    side_by_side(static_cast<uint32_t>(found.size()), count);
  }
  std::vector<CountRule::Ranked> out;
  for (const std::vector<CountRule::Ranked>& layer : found) out.insert(out.end(), layer.begin(), layer.end());
  return out;
}

std::vector<CountRule::Ranked> KvEntryBudget::of_layer(std::span<const RankedHead> heads,
                                                       uint32_t end) const {
  Pool pool(heads);
  // Clusters of the layer, in order of first occurrence. A group that spans layers is counted head by head.
  std::vector<uint32_t> clusters, cluster_of;
  bool inside = true;
  for (const RankedHead& head : heads) {
    const uint32_t group = groups_->group_of(head.head);
    for (const uint32_t member : groups_->members(group)) {
      inside = inside && member / kv_heads_ == head.head / kv_heads_;
    }
    const auto known = std::find(clusters.begin(), clusters.end(), group);
    cluster_of.push_back(static_cast<uint32_t>(known - clusters.begin()));
    if (known == clusters.end()) clusters.push_back(group);
  }
  const uint64_t fraction = rule_.fraction(pool.rows, end);
  std::vector<CountRule::Ranked> out;
  if (rule_.counted_by() == CountedBy::kLayerShares || !inside) {
    const uint32_t k = expected(pool.rows, end);
    const std::vector<uint32_t> of_heads =
        rule_.counted_by() == CountedBy::kLayerShares
            ? kernels::count_adakv(pool.ranked(), k, k / 5)
            : kernels::count_flattened(pool.ranked(), part_up(fraction, pool.scores.size()));
    for (size_t h = 0; h < of_heads.size(); ++h)
      out.push_back({groups_->group_of(heads[h].head), of_heads[h]});
    return out;
  }
  const uint64_t kv_entries = part_up(fraction, clusters.size() * uint64_t{pool.rows});
  const std::vector<uint32_t> of_clusters =
      kernels::count_clustered(pool.ranked(), cluster_of, static_cast<uint32_t>(clusters.size()), kv_entries);
  for (size_t c = 0; c < clusters.size(); ++c) out.push_back({clusters[c], of_clusters[c]});
  return out;
}

std::vector<CountRule::Ranked> KvEntryBudget::across_layers(std::span<const RankedHead> heads,
                                                            uint32_t end) const {
  Pool pool(heads);
  std::vector<uint32_t> cluster_of;
  for (const RankedHead& head : heads) cluster_of.push_back(groups_->group_of(head.head));
  const uint64_t kv_entries =
      part_up(rule_.fraction(pool.rows, end), uint64_t{groups_->groups()} * pool.rows);
  const std::vector<uint32_t> counts =
      kernels::count_clustered(pool.ranked(), cluster_of, groups_->groups(), kv_entries);
  std::vector<CountRule::Ranked> out;
  for (uint32_t g = 0; g < counts.size(); ++g) out.push_back({g, counts[g]});
  return out;
}

}  // namespace kvtwin::cpu
