#include <algorithm>
#include <numeric>

#include "engine/base/check.h"
#include "kernels/grids/partition.h"

namespace kvtwin {
namespace {

using Wide = unsigned __int128;

}  // namespace

std::vector<uint64_t> aot_weights(std::span<const uint64_t> budgets,
                                  std::span<const std::vector<uint32_t>> groups, AotWeight weight) {
  std::vector<uint64_t> weights;
  weights.reserve(groups.size());
  for (const std::vector<uint32_t>& heads : groups) {
    uint64_t sum = 0, most = 0;
    for (const uint32_t head : heads) {
      sum += budgets[head];
      most = std::max(most, budgets[head]);
    }
    weights.push_back(weight == AotWeight::kBudgetSum ? sum : most * heads.size());
  }
  return weights;
}

std::vector<uint32_t> aot_splits(std::span<const uint64_t> weights, uint32_t ctas, bool exact) {
  const Wide sum = std::accumulate(weights.begin(), weights.end(), Wide{0});
  std::vector<uint32_t> splits(weights.size(), 1);
  if (sum == 0) return splits;
  if (!exact) {
    for (size_t i = 0; i < weights.size(); ++i) {
      const auto rounded = static_cast<uint32_t>((2 * Wide{weights[i]} * ctas + sum) / (2 * sum));
      splits[i] = std::max(1u, rounded);
    }
    return splits;
  }
  // Integer parts, at least 1 each; the rest of the grid goes to the largest remainders. If groups that were
  // raised to 1 exceed the grid, the largest groups are reduced.
  std::vector<size_t> order(weights.size());
  std::iota(order.begin(), order.end(), size_t{0});
  uint64_t given = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    splits[i] = std::max(1u, static_cast<uint32_t>(Wide{weights[i]} * ctas / sum));
    given += splits[i];
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return Wide{weights[a]} * ctas % sum > Wide{weights[b]} * ctas % sum;
  });
  for (size_t i = 0; given < ctas; i = (i + 1) % order.size()) {
    ++splits[order[i]];
    ++given;
  }
  while (given > ctas) {
    const auto largest = std::max_element(splits.begin(), splits.end());
    if (*largest == 1) break;
    --*largest;
    --given;
  }
  return splits;
}

uint32_t aot_member_splits(uint32_t group_splits, uint32_t members) {
  return std::max(1u, (2 * group_splits + members) / (2 * members));
}

bool aot_fractions_are_stale(uint64_t lengths_sum, uint32_t groups, uint32_t tail) {
  return Wide{tail} * 10 * groups > lengths_sum;
}

SlowestSplit straggler_of(std::span<const uint64_t> works, std::span<const uint32_t> splits, uint32_t ctas) {
  KVT_CHECK(works.size() == splits.size());
  SlowestSplit worst{0, 1, 0, ctas};
  for (size_t i = 0; i < works.size(); ++i) {
    worst.work_sum += works[i];
    if (Wide{works[i]} * worst.splits > Wide{worst.work} * splits[i]) {
      worst.work = works[i];
      worst.splits = splits[i];
    }
  }
  return worst;
}

SlowestSplit straggler_of(std::span<const SplitRow> rows, std::span<const SplitItem> plan, uint32_t ctas) {
  std::vector<uint64_t> load;
  SlowestSplit worst{0, 1, 0, ctas};
  for (const SplitItem& item : plan) {
    if (item.cta >= load.size()) load.resize(item.cta + 1, 0);
    const uint64_t bytes = uint64_t{item.end - item.begin} * rows[item.row].kv_entry_bytes;
    load[item.cta] += bytes;
    worst.work_sum += bytes;
    worst.work = std::max(worst.work, load[item.cta]);
  }
  return worst;
}

}  // namespace kvtwin
