#include "engine/kv/head_groups.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "engine/base/prng.h"

using namespace kvtwin;

namespace {

uint64_t stored(const GroupMap& map, const std::vector<Fraction>& need) {
  uint64_t sum = 0;
  for (const Fraction largest : map.largest(need)) sum += largest * map.heads_per_group();
  return sum;
}

// The least storage over all divisions into groups of `size`.
uint64_t least(std::vector<Fraction> left, uint32_t size) {
  if (left.empty()) return 0;
  uint64_t best = UINT64_MAX;
  // The first head's companions: every choice of size - 1 others.
  std::vector<bool> chosen(left.size() - 1, false);
  std::fill(chosen.begin(), chosen.begin() + (size - 1), true);
  do {
    std::vector<Fraction> rest;
    Fraction largest = left[0];
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (chosen[i]) {
        largest = std::max(largest, left[i + 1]);
      } else {
        rest.push_back(left[i + 1]);
      }
    }
    best = std::min(best, largest * size + least(rest, size));
  } while (std::prev_permutation(chosen.begin(), chosen.end()));
  return best;
}

LayoutSpec layout(uint32_t layers, uint32_t kv_heads, uint32_t size, Clustering clustering) {
  return {.layers = layers, .kv_heads = kv_heads, .heads_per_group = size, .clustering = clustering};
}

}  // namespace

TEST_CASE("head groups: every head has one place, and columns are in (layer, head) order") {
  Prng prng(7);
  for (const Clustering clustering :
       {Clustering::kAdjacent, Clustering::kPerLayer, Clustering::kAcrossLayers}) {
    for (const uint32_t size : {0u, 1u, 2u, 4u, 8u}) {
      const LayoutSpec spec = layout(3, 8, size, clustering);
      std::vector<Fraction> budgets(spec.heads());
      for (Fraction& budget : budgets) budget = prng.range(0, 5);  // with ties
      const GroupMap map(spec, budgets);
      CAPTURE(size);
      CHECK(map.groups() == (size == 0 ? 1 : 24 / size));
      std::set<std::pair<uint32_t, uint32_t>> places;
      for (uint32_t g = 0; g < map.groups(); ++g) {
        const auto members = map.members(g);
        CHECK(std::is_sorted(members.begin(), members.end()));
        for (uint32_t column = 0; column < members.size(); ++column) {
          CHECK(map.group_of(members[column]) == g);
          CHECK(map.column_of(members[column]) == column);
          places.insert({g, column});
          if (clustering == Clustering::kPerLayer && size > 0) CHECK(members[column] / 8 == members[0] / 8);
        }
      }
      CHECK(places.size() == 24);
    }
  }
}

TEST_CASE("head groups: adjacent groups do not depend on budgets, and equal budgets give adjacent groups") {
  const std::vector<Fraction> equal(24, 9);
  std::vector<Fraction> falling(24);
  std::iota(falling.rbegin(), falling.rend(), Fraction{0});
  const GroupMap adjacent(layout(3, 8, 4, Clustering::kAdjacent), falling);
  const GroupMap clustered(layout(3, 8, 4, Clustering::kAcrossLayers), equal);
  for (uint32_t head = 0; head < 24; ++head) {
    CHECK(adjacent.group_of(head) == head / 4);
    CHECK(clustered.group_of(head) == head / 4);
  }
}

TEST_CASE("head groups: clustering by budget stores the least of all divisions (brute force)") {
  Prng prng(11);
  for (int trial = 0; trial < 60; ++trial) {
    for (const uint32_t size : {2u, 4u}) {
      std::vector<Fraction> budgets(8);
      for (Fraction& budget : budgets) budget = prng.range(0, trial % 3 == 0 ? 3 : 1'000);
      const GroupMap map(layout(1, 8, size, Clustering::kPerLayer), budgets);
      CHECK(stored(map, budgets) == least(budgets, size));
    }
  }
}

TEST_CASE(
    "head groups: clustering over layers stores no more than within layers, which stores no more than "
    "adjacent") {
  Prng prng(13);
  for (int trial = 0; trial < 100; ++trial) {
    std::vector<Fraction> budgets(32);
    for (Fraction& budget : budgets) budget = prng.range(0, kWhole);
    const uint64_t adjacent = stored(GroupMap(layout(4, 8, 4, Clustering::kAdjacent), budgets), budgets);
    const uint64_t within = stored(GroupMap(layout(4, 8, 4, Clustering::kPerLayer), budgets), budgets);
    const uint64_t over = stored(GroupMap(layout(4, 8, 4, Clustering::kAcrossLayers), budgets), budgets);
    CHECK(over <= within);
    CHECK(within <= adjacent);
  }
}

TEST_CASE("head groups: sizes that do not divide are refused") {
  CHECK(validate_layout_spec(layout(2, 8, 3, Clustering::kAdjacent)).has_value());
  CHECK(validate_layout_spec(layout(2, 8, 16, Clustering::kPerLayer)).has_value());
  CHECK(!validate_layout_spec(layout(2, 8, 16, Clustering::kAcrossLayers)).has_value());
  CHECK(validate_layout_spec(layout(0, 8, 1, Clustering::kAdjacent)).has_value());
  CHECK(validate_layout_spec(layout(70'000, 8, 1, Clustering::kAdjacent)).has_value());
}
