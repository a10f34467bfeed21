#include "engine/common/kv_entry_budget.h"

#include <doctest/doctest.h>

#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "engine/base/prng.h"
#include "engine/common/side_by_side.h"
#include "kernels/select/select.h"

namespace kvtwin::cpu {
namespace {

constexpr uint32_t kLayers = 5, kHeads = 4;

std::vector<RankedHead> random_heads(uint32_t rows, uint64_t seed) {
  Prng prng(seed);
  std::vector<RankedHead> out(size_t{kLayers} * kHeads);
  for (uint32_t h = 0; h < out.size(); ++h) {
    out[h].head = h;
    out[h].positions.resize(rows);
    std::iota(out[h].positions.begin(), out[h].positions.end(), 0u);
    out[h].forced = {0, rows - 1};
    for (uint32_t i = 0; i < rows; ++i) out[h].scores.push_back(static_cast<float>(prng.range(1, 1u << 24)));
  }
  return out;
}

PolicySet ada_set(uint32_t heads_per_group) {
  PolicySet set;
  set.budget = "ada";
  set.budget_spec.kv_entries = 100, set.budget_spec.sinks = 1, set.budget_spec.window = 1;
  set.layout_spec.layers = kLayers, set.layout_spec.kv_heads = kHeads;
  set.layout_spec.heads_per_group = heads_per_group;
  return set;
}

// The definition, a layer at a time.
std::vector<uint32_t> one_by_one(const KvEntryBudget& budget, const GroupMap& groups,
                                 const std::vector<RankedHead>& heads, uint32_t end) {
  std::vector<uint32_t> out(groups.groups(), 0);
  for (uint32_t l = 0; l < kLayers; ++l) {
    std::vector<float> scores;
    for (uint32_t h = 0; h < kHeads; ++h) {
      const RankedHead& head = heads[l * kHeads + h];
      scores.insert(scores.end(), head.scores.begin() + 1, head.scores.end() - 1);
    }
    const auto rows = static_cast<uint32_t>(scores.size() / kHeads);
    const uint32_t k = budget.expected(rows, end);
    const std::vector<uint32_t> counts =
        kernels::count_adakv({kernels::packed_scores(scores, kHeads, rows), {rows, {}}}, k, k / 5);
    for (uint32_t h = 0; h < kHeads; ++h) {
      uint32_t& group = out[groups.group_of(l * kHeads + h)];
      group = std::max(group, counts[h]);
    }
  }
  return out;
}

}  // namespace

TEST_CASE("budget: Ada-KV's counts equal those computed per layer, with threads and without") {
  for (const uint32_t heads_per_group : {1u, 4u, 10u}) {  // the last groups span several layers
    const PolicySet set = ada_set(heads_per_group);
    const GroupMap groups(set.layout_spec, {});
    const KvEntryBudget budget(set, 16, &groups);
    for (const uint32_t rows : {300u, 6000u}) {  // 6,000 and 120,000 KV entries
      const std::vector<RankedHead> heads = random_heads(rows, rows);
      CHECK(budget.counts(heads, rows) == one_by_one(budget, groups, heads, rows));
    }
  }
}

TEST_CASE("side by side: every item once, for any count") {
  for (const uint32_t count : {0u, 1u, 3u, 1000u}) {
    std::vector<uint32_t> done(count, 0);
    std::atomic<uint32_t> all = 0;
    side_by_side(count, [&](uint32_t i) { ++done[i], ++all; });
    CHECK(all == count);
    CHECK(done == std::vector<uint32_t>(count, 1));
  }
}

TEST_CASE("side by side: work that calls it again, and calls from several threads at once, again and again") {
  std::atomic<uint32_t> all = 0;
  const auto calls = [&] {
    for (uint32_t round = 0; round < 200; ++round)
      side_by_side(5, [&](uint32_t) { side_by_side(4, [&](uint32_t) { ++all; }); });
  };
  std::thread other(calls), third(calls);
  calls();
  other.join(), third.join();
  CHECK(all == 3 * 200 * 5 * 4);
}

}  // namespace kvtwin::cpu
