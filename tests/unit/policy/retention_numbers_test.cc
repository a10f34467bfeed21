// Integer parts of budgets: PyramidKV's lines, the ratio of the released chunk rule, the rules that end
// outcomes.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "engine/base/prng.h"
#include "engine/methods/chunk_rule.h"
#include "engine/methods/outcome_rules.h"
#include "engine/methods/pyramid.h"

using namespace kvtwin;

namespace {

uint64_t sum(const std::vector<uint32_t>& kv_entries) {
  return std::accumulate(kv_entries.begin(), kv_entries.end(), uint64_t{0});
}

PyramidSpec random_pyramid(Prng* prng) {
  PyramidSpec spec;
  spec.layers = static_cast<uint32_t>(prng->range(1, 80));
  spec.window = static_cast<uint32_t>(prng->range(0, 64));
  spec.budget = spec.window + static_cast<uint32_t>(prng->range(0, 4096));
  spec.beta = static_cast<uint32_t>(prng->range(1, 40));
  return spec;
}

}  // namespace

TEST_CASE("PyramidKV: the exact line sums to layers * base, falls with depth, and stays within N - w") {
  Prng prng(101);
  for (int round = 0; round < 3000; ++round) {
    const PyramidSpec spec = random_pyramid(&prng);
    const uint32_t base = spec.budget - spec.window;
    const uint32_t tokens = spec.budget + static_cast<uint32_t>(prng.range(0, 3 * base + 2));
    const std::vector<uint32_t> kv_entries = pyramid_exact(spec, tokens);
    CAPTURE(round);
    CHECK(sum(kv_entries) == uint64_t{spec.layers} * base);
    // The line in real numbers.
    double most = 2.0 * base - double(base) / spec.beta;
    most = std::min(most, double(tokens - spec.window));
    const double least = 2.0 * base - most;
    double line_sum = 0, entries_sum = 0;
    for (uint32_t l = 0; l < spec.layers; ++l) {
      const double line = spec.layers == 1 ? base : most - l * (most - least) / (spec.layers - 1);
      CHECK(std::fabs(kv_entries[l] - line) <= 1.0 + 1e-9);
      CHECK(kv_entries[l] <= tokens - spec.window);
      CHECK(std::fabs((entries_sum += kv_entries[l]) - (line_sum += line)) <= 0.5 + 1e-6);
      if (l > 0) CHECK(kv_entries[l] <= kv_entries[l - 1] + 1);
    }
  }
}

TEST_CASE(
    "PyramidKV: docs/design/methods/uniform.md#pyramidkv by hand: base 96, beta 20, 4 layers are 187.2, "
    "126.4, 65.6, 4.8") {
  CHECK(pyramid_exact({4, 96, 0, 20}, UINT32_MAX) == std::vector<uint32_t>{187, 127, 65, 5});
}

TEST_CASE("PyramidKV: nothing is dropped while the prompt fits the budget; the ends of the line by hand") {
  const PyramidSpec spec{32, 512, 32, 20};
  CHECK(pyramid_exact(spec, 512) == std::vector<uint32_t>(32, 480));
  CHECK(pyramid_exact(spec, 100) == std::vector<uint32_t>(32, 68));
  CHECK(pyramid_exact(spec, 10) == std::vector<uint32_t>(32, 0));
  CHECK(pyramid_exact(spec, 100'000).front() == 936);
  CHECK(pyramid_exact(spec, 100'000).back() == 24);
}

TEST_CASE("chunk rule: the ratio of the ranked tokens, after sinks and window are set aside") {
  constexpr uint64_t kOne = uint64_t{1} << 32;
  CHECK(adjusted_ratio(kOne, 1000, 4, 32) == kOne);
  CHECK(adjusted_ratio(kOne / 2, 36, 4, 32) == kOne);       // n = 32 <= w
  CHECK(adjusted_ratio(kOne / 2, 4, 4, 32) == kOne);        // sinks only
  CHECK(adjusted_ratio(kOne / 4, 104, 4, 32) == 0);         // 25 < 32
  CHECK(adjusted_ratio(kOne / 2, 68, 4, 32) == 0);          // 32 - 32 = 0 of 32
  CHECK(adjusted_ratio(kOne / 2, 132, 4, 32) == kOne / 3);  // 32 of 96, rounded
  Prng prng(104);
  for (int round = 0; round < 2000; ++round) {
    const uint64_t ratio = prng.range(0, kOne);
    const uint32_t tokens = static_cast<uint32_t>(prng.range(0, 200'000)),
                   sinks = static_cast<uint32_t>(prng.range(0, 64)),
                   window = static_cast<uint32_t>(prng.range(0, 4096));
    const double r = double(ratio) / double(kOne), n = tokens > sinks ? tokens - sinks : 0.0;
    double expected = std::clamp((r * n - window) / (n - window), 0.0, 1.0);
    if (ratio >= kOne || n <= window) {
      expected = 1.0;
    } else if (r * n < window) {
      expected = 0.0;
    }
    CHECK(std::fabs(double(adjusted_ratio(ratio, tokens, sinks, window)) / double(kOne) - expected) < 1e-9);
  }
}

TEST_CASE("outcome rules: the count that ends a ranking has a floor, whole pages and a ceiling") {
  struct Case {
    const char* budget;
    GroupEntries group;
    uint32_t ranked, retained;
  };
  const Case cases[] = {
      {"top_per_layer", {1000, 36, 964}, 100, 100},  // no floor, no pages
      {"top_per_layer", {1000, 36, 50}, 100, 50},    // never more than there are
      {"released", {1000, 36, 964}, 100, 112},       // whole pages
      {"released", {1000, 36, 964}, 112, 112},       // whole pages already
      {"released", {1000, 36, 964}, 0, 32},          // floor: 64 with the 36 fixed ones, 28, rounded up
      {"released", {1000, 64, 936}, 0, 0},           // the fixed ones reach the floor
      {"released", {40, 36, 4}, 0, 4},               // no floor above the tokens
      {"released", {1000, 36, 110}, 100, 110},       // rounding stops at the candidates
      {"released", {1000, 0, 20}, 5, 20},            // and so does the floor
  };
  for (const Case& c : cases) {
    PolicySet set;
    set.budget = c.budget;
    set.budget_spec.retained_min = 64;
    CAPTURE(c.group.fixed);
    CAPTURE(c.ranked);
    // A group is as long as its longest member.
    const CountRule::Ranked ranked[] = {{1, c.ranked / 2}, {1, c.ranked}, {0, 0}};
    const GroupEntries groups[] = {{}, c.group};
    CHECK(CountRule(set, 16).finish(ranked, groups) == std::vector<uint32_t>{0, c.retained});
  }
}

TEST_CASE("outcome rules: a forced count leaves the fixed entries, and no more than there are") {
  CHECK(forced_keep_count(30, {100, 10, 50}) == 20);
  CHECK(forced_keep_count(5, {100, 10, 50}) == 0);
  CHECK(forced_keep_count(100, {100, 10, 50}) == 50);
}

TEST_CASE("outcome rules: the number expected of a head is its part of the budget") {
  PolicySet set;
  set.budget = "ada";
  set.budget_spec.sinks = 4, set.budget_spec.window = 32, set.budget_spec.kv_entries = 136;
  CHECK(CountRule(set, 16).expected(1000, 1036) == 100);
  CHECK(CountRule(set, 16).expected(3, 39) == 3);  // there are no more
  set.budget = "top_per_layer", set.budget_spec.ratio = kWhole / 2;
  CHECK(CountRule(set, 16).expected(96, 132) == 32);  // of 128 tokens, 64, of which the window are 32
}

TEST_CASE("outcome rules: tokens that are left are reported by position") {
  const uint32_t positions[] = {0, 3, 64, 66, 130}, rows[] = {0, 2, 4};
  std::vector<uint64_t> live = {7};
  std::vector<uint32_t> dropped;
  CHECK(retain_tokens(positions, rows, 140, &live, [&](uint32_t row) { dropped.push_back(row); }) ==
        std::vector<uint32_t>{0, 64, 130});
  CHECK(dropped == std::vector<uint32_t>{1, 3});
  CHECK(live == std::vector<uint64_t>{7, 1, 1, 4});
}

TEST_CASE("outcome rules: a head misses at most what its slots do not hold") {
  CHECK(missing_pages_max(8, 8) == 0);
  CHECK(missing_pages_max(8, 11) == 3);
  CHECK(missing_pages_max(8, 16) == 8);
  CHECK(missing_pages_max(8, 100) == 8);
  CHECK(missing_pages_max(0, 5) == 0);
}
