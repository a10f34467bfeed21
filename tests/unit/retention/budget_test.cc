#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <string>

#include "engine/base/prng.h"
#include "engine/methods/axis_factories.h"
#include "engine/methods/budget_groups.h"
#include "engine/methods/budget_spec.h"
#include "engine/methods/registry.h"
#include "engine/methods/retention.h"

using namespace kvtwin;

namespace {

Fraction fraction(double value) { return static_cast<Fraction>(std::llround(value * 4294967296.0)); }

PolicySet ragged(uint32_t layers, uint32_t kv_heads, uint32_t size) {
  PolicySet set;
  set.layout = "ragged";
  set.layout_spec.layers = layers;
  set.layout_spec.kv_heads = kv_heads;
  set.layout_spec.heads_per_group = size;
  return set;
}

}  // namespace

TEST_CASE("budget: fractions of a whole round as specified, to the last KV entry") {
  CHECK(part_up(kWhole, 4'000'000'000u) == 4'000'000'000u);
  CHECK(part_down(kWhole, 4'000'000'000u) == 4'000'000'000u);
  CHECK(part_up(1, 4'000'000'000u) == 1);
  CHECK(part_down(1, 4'000'000'000u) == 0);
  CHECK(part_up(kWhole / 2, 7) == 4);
  CHECK(part_down(kWhole / 2, 7) == 3);
}

TEST_CASE("budget reserved: B = min(1, mu + alpha sigma), absolute and by fractions") {
  BudgetSpec spec;
  spec.mu = {fraction(0.1), fraction(0.5), fraction(0.9)};
  spec.sigma = {fraction(0.05), fraction(0.1), fraction(0.2)};
  const std::vector<Fraction> absolute = reserved_fractions(spec);
  CHECK(std::abs(static_cast<double>(absolute[0]) / kWhole - 0.2) < 1e-9);
  CHECK(std::abs(static_cast<double>(absolute[1]) / kWhole - 0.7) < 1e-9);
  CHECK(absolute[2] == kWhole);
  spec.relative = true;
  spec.ratio = fraction(0.5);
  const std::vector<Fraction> fractions = reserved_fractions(spec);
  CHECK(std::abs(static_cast<double>(fractions[0]) / kWhole - 0.1) < 1e-9);
  CHECK(std::abs(static_cast<double>(fractions[2]) / kWhole - 0.65) < 1e-9);
}

TEST_CASE("budget reserved: renormalised: it takes the largest alpha whose sum fits") {
  Prng prng(5);
  for (int trial = 0; trial < 100; ++trial) {
    BudgetSpec spec;
    for (int head = 0; head < 16; ++head) {
      spec.mu.push_back(prng.range(0, kWhole / 4));
      spec.sigma.push_back(prng.range(0, kWhole / 8));
    }
    uint64_t mean = std::accumulate(spec.mu.begin(), spec.mu.end(), uint64_t{0}) / 16;
    spec.ratio = mean + 1;
    spec.inflation = prng.range(0, kWhole);
    const auto sum = [](const std::vector<Fraction>& fractions) {
      return std::accumulate(fractions.begin(), fractions.end(), uint64_t{0});
    };
    const uint64_t got = sum(reserved_fractions(spec));
    const double limit =
        (1.0 + static_cast<double>(*spec.inflation) / kWhole) * static_cast<double>(spec.ratio) * 16;
    CHECK(static_cast<double>(got) <= limit);
    spec.inflation.reset();
    const uint64_t unlimited = sum(reserved_fractions(spec));
    // Either the limit had no effect, or only rounding is left over.
    if (got < unlimited) CHECK(static_cast<double>(got) > limit * (1 - 1e-6));
  }
}

TEST_CASE("T-5 budget reserved: the pages of a reservation grow with alpha") {
  PolicySet set = ragged(4, 8, 4);
  set.budget = "reserved";
  set.layout_spec.clustering = Clustering::kAcrossLayers;
  Prng prng(9);
  for (int head = 0; head < 32; ++head) {
    set.budget_spec.mu.push_back(prng.range(0, kWhole));
    set.budget_spec.sigma.push_back(prng.range(0, kWhole / 4));
  }
  CoreConfig config;
  uint64_t before = 0;
  for (int alpha = 0; alpha <= 12; ++alpha) {
    set.budget_spec.alpha = static_cast<Fraction>(alpha) * kWhole / 2;
    // Clusters follow B, which alpha changes, so the comparison uses a fixed clustering.
    PolicySet fixed = set;
    fixed.layout_spec.clustering = Clustering::kAdjacent;
    config.policies = fixed;
    const PolicyAxes axes = make_axes(fixed);
    const uint64_t pages = Retention(config, axes).pages_retained(20'000, 0);
    CHECK(pages >= before);
    before = pages;
  }
  // T-3: with B = 1 everywhere, every entry is retained.
  CHECK(before <= 8 * div_ceil(20'000u, 16u));
}

TEST_CASE("T-3 budget reserved: alpha without limit retains every KV entry") {
  PolicySet set = ragged(2, 4, 2);
  set.budget = "reserved";
  set.budget_spec.mu.assign(8, kWhole / 8);
  set.budget_spec.sigma.assign(8, kWhole / 8);
  set.budget_spec.alpha = 4'096 * kWhole;
  CoreConfig config;
  config.policies = set;
  const PolicyAxes axes = make_axes(set);
  const Retention retention(config, axes);
  for (const uint32_t tokens : {0u, 1u, 35u, 36u, 37u, 2'048u, 100'001u}) {
    for (uint32_t g = 0; g < 4; ++g) CHECK(retention.entries_after(g, tokens) == tokens);
  }
}

TEST_CASE(
    "budget: quotas are cumulative, so chunks add up to the whole (docs/design/methods/tangram.md#chunks)") {
  Prng prng(21);
  for (int trial = 0; trial < 100; ++trial) {
    PolicySet set = ragged(2, 4, 2);
    set.budget = "reserved";
    for (int head = 0; head < 8; ++head) {
      set.budget_spec.mu.push_back(prng.range(0, kWhole));
      set.budget_spec.sigma.push_back(0);
    }
    const auto budget = make_budget(set);
    const auto chunk = static_cast<uint32_t>(prng.range(1, 300));
    for (uint32_t g = 0; g < 4; ++g) {
      for (uint32_t n = 0; n < 5'000; n += chunk) {
        const uint32_t grows = budget->quota(g, n + chunk) - budget->quota(g, n);
        CHECK(grows <= chunk);  // never more than there are candidates
      }
    }
  }
}

TEST_CASE("budget: the entries that each kind retains in each group") {
  CoreConfig config;
  const auto kv_entries = [&](PolicySet set, uint32_t tokens) {
    set.budget_spec.sinks = 2;
    set.budget_spec.window = 8;
    config.policies = set;
    const PolicyAxes axes = make_axes(set);
    const Retention retention(config, axes);
    std::vector<uint32_t> out;
    for (uint32_t g = 0; g < retention.shape().groups; ++g) out.push_back(retention.entries_after(g, tokens));
    return out;
  };
  using KvEntries = std::vector<uint32_t>;
  PolicySet set = ragged(2, 2, 2);
  set.budget = "ratio";
  set.budget_spec.ratio = kWhole / 4;
  CHECK(kv_entries(set, 8) == KvEntries{8, 8});
  CHECK(kv_entries(set, 10) == KvEntries{10, 10});
  CHECK(kv_entries(set, 110) == KvEntries{35, 35});
  set.budget = "uniform";
  set.budget_spec.kv_entries = 50;
  CHECK(kv_entries(set, 49) == KvEntries{49, 49});
  CHECK(kv_entries(set, 110) == KvEntries{50, 50});
  set.budget_spec.sinks_free = true;
  CHECK(kv_entries(set, 110) == KvEntries{52, 52});
  set.budget_spec.sinks_free = false;
  set.budget = "pyramid";  // base 40, beta 20: 78 and 2 in addition to the forced ones
  CHECK(kv_entries(set, 1'000) == KvEntries{88, 12});
  set.budget = "head_masks";
  set.budget_spec.keeps_all = {false, true, false, false};
  CHECK(kv_entries(set, 110) == KvEntries{110, 10});
  set.budget = "reserved";
  set.budget_spec.mu = {kWhole / 2, kWhole / 4, kWhole / 10, 0};
  set.budget_spec.sigma.assign(4, 0);
  CHECK(kv_entries(set, 110) == KvEntries{60, 20});
}

TEST_CASE("budget: impossible numbers are refused with a remedy") {
  const LayoutSpec layout{.layers = 2, .kv_heads = 4, .heads_per_group = 2};
  BudgetSpec spec;
  CHECK(!validate_budget_spec("ratio", spec, layout).has_value());
  spec.ratio = kWhole + 1;
  CHECK(validate_budget_spec("ratio", spec, layout).has_value());
  spec.ratio = kWhole;
  spec.kv_entries = 35;
  CHECK(validate_budget_spec("uniform", spec, layout)->find("raise KV entries") != std::string::npos);
  CHECK(validate_budget_spec("reserved", spec, layout)->find("8 heads") != std::string::npos);
  CHECK(validate_budget_spec("head_masks", spec, layout)->find("8 heads") != std::string::npos);
  spec.interval = 0;
  CHECK(validate_budget_spec("ratio", spec, layout).has_value());
}

TEST_CASE("query span: forced tokens and quotas, by roles and by counts") {
  struct Row {
    const char* what;
    const char* budget;
    bool sinks_free;
    PromptSpans spans;
    uint32_t tokens;                            // ranked or forced
    uint32_t prefix, newest_begin, newest_end;  // forced
    uint32_t after;                             // entries retained
  };
  const PromptSpans asks{20, {150, 170}, {145, 180}};  // of 180 tokens
  const Row rows[] = {
      {"roles, template free", "uniform", true, asks, 180, 20, 145, 180, 20 + 35 + 80},
      {"roles, template counted", "uniform", false, asks, 180, 20, 145, 180, 100},
      {"roles, a fraction", "ratio", true, asks, 180, 20, 145, 180, 55 + 125 / 2},
      {"a query as long as the budget", "uniform", true, {20, {60, 180}, {60, 180}}, 180, 20, 60, 180, 140},
      {"everything is forced", "uniform", true, {20, {20, 40}, {20, 44}}, 44, 20, 20, 44, 44},
      {"less than the budget", "uniform", true, {10, {30, 40}, {25, 44}}, 44, 10, 25, 44, 44},
      {"before the query is computed", "uniform", true, asks, 130, 20, 130, 130, 120},
      {"within the query", "uniform", true, asks, 160, 20, 145, 160, 20 + 15 + 90},
      {"no system prompt: the sinks",
       "uniform",
       true,
       {0, {150, 170}, {150, 170}},
       180,
       2,
       150,
       170,
       2 + 20 + 80},
      {"a question alone", "uniform", true, {0, {0, 170}, {0, 172}}, 172, 0, 0, 172, 172},
      {"no roles", "uniform", true, {}, 180, 2, 172, 180, 2 + 8 + 92},
      {"no roles, template counted", "uniform", false, {}, 180, 2, 172, 180, 100},
      {"no roles, short", "uniform", true, {}, 9, 2, 2, 9, 9},
  };
  for (const Row& row : rows) {
    CAPTURE(std::string(row.what));
    CoreConfig config;
    config.policies.scorer = "intent_rule", config.policies.budget = row.budget;
    config.policies.layout = "page_mask";
    config.policies.budget_spec.sinks = 2, config.policies.budget_spec.window = 8;
    config.policies.budget_spec.kv_entries = 100, config.policies.budget_spec.ratio = kWhole / 2;
    config.policies.budget_spec.sinks_free = row.sinks_free;
    const PolicyAxes axes = make_axes(config.policies);
    const Retention retention(config, axes);
    const ForcedTokens forced = retention.forced(row.spans, row.tokens);
    CHECK(forced.prefix == row.prefix);
    CHECK(forced.newest == TokenRange{row.newest_begin, row.newest_end});
    CHECK(retention.entries_after(0, row.tokens, row.spans) == row.after);
    CHECK(retention.can_drop(row.tokens, row.tokens, row.spans) == (row.after < row.tokens));
  }
}

TEST_CASE("query span: only scorers that read roles have one") {
  for (const PolicyInfo& info : all_policies()) {
    if (info.axis != "scorer") continue;
    CAPTURE(info.name);
    CoreConfig config;
    config.policies.scorer = info.name;
    config.policies.budget_spec.window = 0;
    const PolicyAxes axes = make_axes(config.policies);
    const Retention retention(config, axes);
    RequestReady request;
    request.spans = {1, {2, 5}, {2, 5}};
    const bool reads = info.name == "intent_rule" || info.name == "intent_residual";
    CHECK(retention.spans_of(request).known() == reads);
    CHECK(retention.query({}, 100) == (reads ? TokenRange{36, 100} : TokenRange{}));
    CHECK(retention.query({}, 10) == (reads ? TokenRange{0, 10} : TokenRange{}));
  }
}
