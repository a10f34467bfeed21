// The simulator's behaviour model and the engines end compressions alike: what one retains, the other retains
// from the same draws. The CUDA engine's host side calls the same KvEntryBudget and outcome rules.

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "engine/base/prng.h"
#include "engine/common/forced_outcome.h"
#include "engine/common/kv_entry_budget.h"
#include "engine/methods/budget_groups.h"
#include "engine/methods/outcome_rules.h"
#include "sim/behaviour/behaviour_retention.h"

namespace kvtwin {
namespace {

constexpr uint32_t kLayers = 3, kHeads = 4;

struct Drawn {
  CoreConfig config;
  uint32_t tokens = 0;
  std::vector<Compression::Forced> forced;
  std::vector<cpu::RankedHead> heads;

  uint32_t forced_tokens() const {
    uint32_t out = 0;
    for (const Compression::Forced& range : forced) out += range.end - range.begin;
    return out;
  }
};

Drawn draw_ranking(uint64_t seed) {
  Prng prng(seed);
  const auto number = [&](uint64_t low, uint64_t high) {
    return static_cast<uint32_t>(prng.range(low, high));
  };
  const char* const budgets[] = {"ada", "top_per_layer", "top_across_layers", "released"};
  Drawn out;
  PolicySet& set = out.config.policies;
  out.config.page_tokens = 1u << number(0, 4);
  set.layout = "ragged", set.budget = budgets[seed % 4];
  const uint32_t sizes[] = {1, 2, 4, 12};
  set.layout_spec = {.layers = kLayers, .kv_heads = kHeads, .heads_per_group = sizes[number(0, 3)]};
  if (set.layout_spec.heads_per_group > kHeads) set.layout_spec.clustering = Clustering::kAcrossLayers;
  BudgetSpec& spec = set.budget_spec;
  spec.sinks = number(0, 6), spec.window = number(1, 12);
  spec.ratio = kWhole / 100 * number(5, 90), spec.kv_entries = number(4, 200);
  spec.retained_min = number(0, 60);
  out.tokens = number(spec.sinks + spec.window, 300);
  out.forced = {{0, spec.sinks}, {out.tokens - spec.window, out.tokens}};
  for (uint32_t h = 0; h < kLayers * kHeads; ++h) {
    cpu::RankedHead& head = out.heads.emplace_back();
    head.head = h;
    head.positions.resize(out.tokens);
    std::iota(head.positions.begin(), head.positions.end(), 0u);
    for (const Compression::Forced& range : out.forced) {
      for (uint32_t row = range.begin; row < range.end; ++row) head.forced.push_back(row);
    }
    // Heads differ in scale, so that they compete.
    const uint32_t most = number(1, 1u << 20);
    for (uint32_t row = 0; row < out.tokens; ++row)
      head.scores.push_back(static_cast<float>(prng.range(1, most)));
  }
  return out;
}

// The counts before floor and pages, by group.
std::vector<uint32_t> counts_unfinished(const Drawn& drawn, const GroupMap& groups) {
  PolicySet set = drawn.config.policies;
  set.budget_spec.retained_min = 0;
  return cpu::KvEntryBudget(set, 1, &groups).counts(drawn.heads, drawn.tokens);
}

DataOutcomes simulated(const Drawn& drawn, std::vector<Fraction> fractions, std::span<const uint32_t> keep) {
  sim::RetentionSource source(drawn.config, sim::RetentionModel::kContexts, 1, std::move(fractions));
  PlanEntry entry{RequestId{1}, EntryKind::kChunk, true, true, drawn.tokens, 0};
  entry.key = {SessionId{1}, 0};
  const Compression compression{
      .entry = 0, .begin = 0, .end = drawn.tokens, .forced = drawn.forced, .keep = keep};
  std::vector<PageAllocation> pages;
  for (uint32_t page = 0; page < div_ceil(drawn.tokens, drawn.config.page_tokens); ++page)
    pages.push_back({0, 0, PageId{page}});
  LaunchStep launch;
  launch.entries = {&entry, 1};
  launch.allocations = pages;
  launch.compressions = {&compression, 1};
  DataOutcomes out;
  source.step(launch, 0, &out);
  REQUIRE(out.retained.size() == 1);
  return out;
}

}  // namespace

TEST_CASE("outcomes: a behaviour model that draws what engines rank retains as many entries as they do") {
  uint32_t floors = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    const Drawn drawn = draw_ranking(seed);
    const GroupMap groups = make_groups(drawn.config.policies);
    const uint32_t candidates = drawn.tokens - drawn.forced_tokens();
    const std::vector<uint32_t> unfinished = counts_unfinished(drawn, groups);
    // One member of each group draws the group's count, the others at most that.
    std::vector<Fraction> fractions(kLayers * kHeads);
    for (uint32_t g = 0; g < groups.groups(); ++g) {
      const Fraction whole = candidates == 0 ? 0 : (uint64_t{unfinished[g]} << 32) / candidates;
      const auto& members = groups.members(g);
      for (size_t m = 0; m < members.size(); ++m)
        fractions[members[m]] = m == seed % members.size() ? whole : whole / 2;
    }
    const DataOutcomes drawn_outcome = simulated(drawn, fractions, {});
    const cpu::KvEntryBudget budget(drawn.config.policies, drawn.config.page_tokens, &groups);
    const std::vector<uint32_t> retained = budget.counts(drawn.heads, drawn.tokens);
    floors += retained != unfinished ? 1 : 0;
    std::vector<uint32_t> left;
    for (const uint32_t count : retained) left.push_back(drawn.forced_tokens() + count);
    const std::span<const uint32_t> counts = drawn_outcome.retained[0].counts;
    CHECK(std::vector<uint32_t>(counts.begin(), counts.end()) == left);
    // Forced on an engine, they are the counts that it would have found.
    const std::vector<GroupEntries> entries = budget.entries(drawn.heads, drawn.tokens);
    for (uint32_t g = 0; g < groups.groups(); ++g)
      CHECK(forced_keep_count(counts[g], entries[g]) == retained[g]);
  }
  CHECK(floors > 20);
}

TEST_CASE(
    "outcomes: tokens that a behaviour model draws are those that an engine retains if they are forced") {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    Drawn drawn = draw_ranking(seed);
    drawn.config.policies.budget = "uniform", drawn.config.policies.layout = "page_mask";
    const cpu::RankedHead& head = drawn.heads[0];
    const uint32_t keep[] = {static_cast<uint32_t>(seed * 7 % 90)};
    const DataOutcomes outcome = simulated(drawn, std::vector<Fraction>(kLayers * kHeads, kWhole), keep);
    const std::span<const uint64_t> live = outcome.retained[0].live;
    const uint32_t count = drawn.forced_tokens() + std::min(keep[0], head.candidates());
    const std::vector<uint32_t> rows = cpu::forced_outcome_rows(live, head.positions, head.forced, count);
    REQUIRE(rows.size() == count);
    std::vector<uint64_t> of_engine;
    uint32_t dropped = 0;
    retain_tokens(head.positions, rows, drawn.tokens, &of_engine, [&](uint32_t) { ++dropped; });
    CHECK(of_engine == std::vector<uint64_t>(live.begin(), live.end()));
    CHECK(dropped == drawn.tokens - count);
  }
}

}  // namespace kvtwin
