// The work figures of docs/design/methods/tangram.md#aot, computed by the policy's planner from a measured
// profile.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "kernels/grids/partition.h"
#include "models/profiles/retention_stats.h"
#include "tests/unit/models/test_data.h"

namespace kvtwin {
namespace {

struct SplitFigures {
  int mean = 0, worst = 0;  // hundredths of max-CTA / mean, over layers
  uint32_t ctas_least = UINT32_MAX, ctas_most = 0;
};

enum class Splits : uint8_t { kUniform, kBudgetSum, kGroupMax };

// The heads of each layer in groups of `group`, ordered, weighted and sized by `fractions` (Q0.32).
SplitFigures split_figures(const RetentionProfile& p, const std::vector<double>& fractions, uint32_t group,
                           Splits kind) {
  constexpr uint32_t kCtas = 264;
  const std::vector<uint64_t> q32 = to_q32(fractions);
  const std::vector<uint32_t> order = group_order(p, fractions, GroupScope::kPerLayer);
  double sum = 0, worst = 0;
  SplitFigures out;
  for (uint32_t layer = 0; layer < p.layers; ++layer) {
    std::vector<std::vector<uint32_t>> groups;
    for (uint32_t at = layer * p.kv_heads; at < (layer + 1) * p.kv_heads; at += group)
      groups.emplace_back(order.begin() + at, order.begin() + at + group);
    const auto works = aot_weights(q32, groups, AotWeight::kGroupMax);
    const auto weights =
        kind == Splits::kUniform
            ? std::vector<uint64_t>(groups.size(), 1)
            : aot_weights(q32, groups,
                          kind == Splits::kBudgetSum ? AotWeight::kBudgetSum : AotWeight::kGroupMax);
    const auto splits = aot_splits(weights, kCtas, false);
    const SlowestSplit s = straggler_of(works, splits, kCtas);
    const double ratio = static_cast<double>(s.work) * s.ctas / (s.splits * static_cast<double>(s.work_sum));
    sum += ratio;
    worst = std::max(worst, ratio);
    uint32_t ctas = 0;
    for (const uint32_t n : splits) ctas += n;
    out.ctas_least = std::min(out.ctas_least, ctas);
    out.ctas_most = std::max(out.ctas_most, ctas);
    // Exact rounding meets the grid.
    uint32_t exact = 0;
    for (const uint32_t n : aot_splits(weights, kCtas, true)) exact += n;
    CHECK(exact == kCtas);
  }
  out.mean = static_cast<int>(std::lround(100 * sum / p.layers));
  out.worst = static_cast<int>(std::lround(100 * worst));
  return out;
}

}  // namespace

TEST_CASE("partition figures: docs/design/methods/tangram.md#aot in both readings, to the printed decimals") {
  const std::string path = "retention-profiles/fastkvzip/llama-3.1-8b-instruct/profile_perlayer.npz";
  if (!have_test_data(path)) {
    MESSAGE("no retention-profiles below $KVTWIN_DATA: skipped");
    return;
  }
  const auto p = import_retention_npz_file(test_data(path));
  REQUIRE(p);
  const std::vector<double> b = budgets(p->mu, p->sigma, 2);
  const auto check = [&](const std::vector<double>& x, uint32_t group, Splits kind, int mean, int worst) {
    const SplitFigures f = split_figures(*p, x, group, kind);
    CHECK(f.mean == mean);
    if (worst > 0) CHECK(f.worst == worst);
  };
  // Budgets equal to mu.
  check(p->mu, 4, Splits::kBudgetSum, 117, 224);
  check(p->mu, 4, Splits::kGroupMax, 101, 122);
  check(p->mu, 4, Splits::kUniform, 192, 0);
  check(p->mu, 1, Splits::kUniform, 470, 0);
  check(p->mu, 1, Splits::kBudgetSum, 108, 0);
  // Budgets equal to mu + 2 sigma.
  check(b, 4, Splits::kBudgetSum, 124, 241);
  check(b, 4, Splits::kGroupMax, 100, 104);
  check(b, 4, Splits::kUniform, 186, 0);
  check(b, 1, Splits::kUniform, 394, 0);
  check(b, 1, Splits::kBudgetSum, 109, 0);
  // The rounding deviates from the grid by up to 6 of 264.
  CHECK(split_figures(*p, p->mu, 1, Splits::kBudgetSum).ctas_least == 263);
  CHECK(split_figures(*p, p->mu, 1, Splits::kBudgetSum).ctas_most == 270);
}

}  // namespace kvtwin
