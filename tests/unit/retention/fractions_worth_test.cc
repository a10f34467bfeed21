// Reserved fractions must be worth more than equal ones with the same number of KV entries where heads
// differ, and no more where heads are alike. The data is synthetic: each head needs a few KV entries of 96,
// and its scorer ranks those first.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/base/prng.h"
#include "engine/methods/axis_factories.h"
#include "engine/methods/budget_spec.h"

namespace kvtwin {
namespace {

constexpr uint32_t kHeads = 4, kRanked = 96;
using Counts = std::array<uint32_t, kHeads>;

// The number of entries that a context needs of each head: about `typical`.
Counts wanted(const Counts& typical, Prng* prng) {
  Counts out{};
  for (uint32_t head = 0; head < kHeads; ++head)
    out[head] = typical[head] + static_cast<uint32_t>(prng->range(0, 1 + typical[head] / 8));
  return out;
}

PolicySet reserved_by(const Counts& typical, Prng* prng) {
  constexpr int kContexts = 32;
  std::array<double, kHeads> sum{}, squares{};
  for (int context = 0; context < kContexts; ++context) {
    const Counts now = wanted(typical, prng);
    for (uint32_t head = 0; head < kHeads; ++head) {
      const double retained = static_cast<double>(now[head]) / kRanked;
      sum[head] += retained, squares[head] += retained * retained;
    }
  }
  PolicySet set;
  set.layout = "ragged", set.budget = "reserved";
  set.layout_spec.layers = 1, set.layout_spec.kv_heads = kHeads, set.layout_spec.heads_per_group = 1;
  for (uint32_t head = 0; head < kHeads; ++head) {
    const double mean = sum[head] / kContexts;
    const double deviation = std::sqrt(std::max(0.0, squares[head] / kContexts - mean * mean));
    set.budget_spec.mu.push_back(static_cast<Fraction>(mean * kWhole));
    set.budget_spec.sigma.push_back(static_cast<Fraction>(deviation * kWhole));
  }
  set.budget_spec.alpha = kWhole;  // one deviation
  return set;
}

struct RetainedWorth {
  uint32_t reserved = 0, uniform = 0, contexts = 0;    // contexts that lose none
  uint32_t entries_reserved = 0, entries_uniform = 0;  // of all heads
};

RetainedWorth worth(const Counts& typical) {
  Prng prng(7);
  const auto budget = make_budget(reserved_by(typical, &prng));
  RetainedWorth out;
  Counts quota{};
  for (uint32_t head = 0; head < kHeads; ++head)
    out.entries_reserved += quota[head] = budget->quota(head, kRanked);
  const uint32_t each = (out.entries_reserved + kHeads - 1) / kHeads;
  out.entries_uniform = each * kHeads;
  for (out.contexts = 0; out.contexts < 200; ++out.contexts) {
    const Counts now = wanted(typical, &prng);
    bool all = true, all_uniform = true;
    for (uint32_t head = 0; head < kHeads; ++head) {
      all = all && now[head] <= quota[head];
      all_uniform = all_uniform && now[head] <= each;
    }
    out.reserved += all, out.uniform += all_uniform;
  }
  return out;
}

TEST_CASE(
    "budget reserved: where one head needs ten times as much, fractions lose little and equal counts lose "
    "much") {
  const RetainedWorth strong = worth({40, 4, 4, 4});
  CHECK(strong.entries_reserved <= strong.entries_uniform);
  CHECK(strong.uniform == 0);
  CHECK(strong.reserved > strong.contexts / 2);
}

TEST_CASE("budget reserved: where all heads need the same, fractions differ from equal ones by chance only") {
  const RetainedWorth alike = worth({16, 16, 16, 16});
  CHECK(alike.entries_uniform - alike.entries_reserved < kHeads);
  CHECK(alike.uniform + alike.contexts / 5 >= alike.reserved);
}

}  // namespace
}  // namespace kvtwin
