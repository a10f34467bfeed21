#include "engine/common/kv_entry_budget.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/common/side_by_side.h"
#include "engine/methods/chunk_rule.h"
#include "engine/methods/outcome_rules.h"

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
    : spec_(set.budget_spec),
      kv_heads_(set.layout_spec.kv_heads),
      counted_by_(budget_traits(set.budget).counted_by),
      page_tokens_(page_tokens),
      groups_(groups) {}

// The fraction of ranked KV entries; sinks and window are always retained
// (docs/design/methods/tangram.md#released-chunks, r_adj).
uint64_t KvEntryBudget::fraction(uint32_t end) const {
  return adjusted_ratio(spec_.ratio, end, spec_.sinks, spec_.window);
}

uint32_t KvEntryBudget::expected(uint32_t candidates, uint32_t end) const {
  if (counted_by_ == CountedBy::kLayerShares) return std::min(candidates, ranked_entries(spec_));
  return static_cast<uint32_t>(part_up(fraction(end), candidates));
}

std::vector<uint32_t> KvEntryBudget::counts(std::span<const RankedHead> heads, uint32_t end) const {
  KVT_CHECK(counted_by_ != CountedBy::kNothing);
  std::vector<uint32_t> out =
      counted_by_ == CountedBy::kAllLayers ? across_layers(heads, end) : by_layer(heads, end);
  finish(heads, end, &out);
  return out;
}

std::vector<uint32_t> KvEntryBudget::by_layer(std::span<const RankedHead> heads, uint32_t end) const {
  std::vector<std::vector<GroupCount>> found(heads.size() / kv_heads_);
  const auto count = [&](uint32_t l) {
    found[l] = of_layer(heads.subspan(size_t{l} * kv_heads_, kv_heads_), end);
  };
  const size_t kv_entries = heads.empty() ? 0 : heads.size() * heads[0].rows();
  if (kv_entries < kFewKvEntries) {
    for (uint32_t l = 0; l < found.size(); ++l) count(l);
  } else {
    side_by_side(static_cast<uint32_t>(found.size()), count);
  }
  std::vector<uint32_t> out(groups_->groups(), 0);
  for (const std::vector<GroupCount>& layer : found) {
    for (const GroupCount& one : layer) out[one.group] = std::max(out[one.group], one.count);
  }
  return out;
}

std::vector<KvEntryBudget::GroupCount> KvEntryBudget::of_layer(std::span<const RankedHead> heads,
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
  std::vector<GroupCount> out;
  if (counted_by_ == CountedBy::kLayerShares || !inside) {
    const uint32_t k = expected(pool.rows, end);
    const std::vector<uint32_t> of_heads =
        counted_by_ == CountedBy::kLayerShares
            ? kernels::count_adakv(pool.ranked(), k, k / 5)
            : kernels::count_flattened(pool.ranked(), part_up(fraction(end), pool.scores.size()));
    for (size_t h = 0; h < of_heads.size(); ++h)
      out.push_back({groups_->group_of(heads[h].head), of_heads[h]});
    return out;
  }
  const uint64_t kv_entries = part_up(fraction(end), clusters.size() * uint64_t{pool.rows});
  const std::vector<uint32_t> of_clusters =
      kernels::count_clustered(pool.ranked(), cluster_of, static_cast<uint32_t>(clusters.size()), kv_entries);
  for (size_t c = 0; c < clusters.size(); ++c) out.push_back({clusters[c], of_clusters[c]});
  return out;
}

std::vector<uint32_t> KvEntryBudget::across_layers(std::span<const RankedHead> heads, uint32_t end) const {
  Pool pool(heads);
  std::vector<uint32_t> cluster_of;
  for (const RankedHead& head : heads) cluster_of.push_back(groups_->group_of(head.head));
  const uint64_t kv_entries = part_up(fraction(end), uint64_t{groups_->groups()} * pool.rows);
  return kernels::count_clustered(pool.ranked(), cluster_of, groups_->groups(), kv_entries);
}

void KvEntryBudget::finish(std::span<const RankedHead> heads, uint32_t end,
                           std::vector<uint32_t>* counts) const {
  for (const RankedHead& head : heads) {
    uint32_t& count = (*counts)[groups_->group_of(head.head)];
    const uint32_t fixed = head.first + static_cast<uint32_t>(head.forced.size());
    count = finish_count(counted_by_, spec_, page_tokens_, {end, fixed, head.candidates()}, count);
  }
}

}  // namespace kvtwin::cpu
