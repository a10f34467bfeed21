// The capability table agrees with what the policy accepts, pair by pair.

#include "engine/methods/combinations.h"

#include <doctest/doctest.h>

#include <string>

#include "engine/methods/combination_pairs.h"
#include "engine/methods/registry.h"

using namespace kvtwin;

namespace {

// A configuration of these policies whose numbers contradict none of them.
CoreConfig with_numbers(const PolicySet& set, bool prefix_cache) {
  CoreConfig config;
  config.policies = set;
  PolicySet& own = config.policies;
  config.prefix_cache = prefix_cache;
  config.pages_gpu = 1'000;
  config.pages_host = placement_traits(set.placement).uses_host ? 1'000 : 0;
  config.page_tokens = config.unit_tokens = layout_traits(set.layout).needs_page_1 ? 1 : 32;
  own.layout_spec = {.layers = 2, .kv_heads = 4, .heads_per_group = 2};
  own.budget_spec.ratio = kWhole / 2, own.budget_spec.kv_entries = 256, own.budget_spec.chunk_tokens = 512;
  own.budget_spec.mu.assign(8, kWhole / 4), own.budget_spec.sigma.assign(8, kWhole / 16);
  own.budget_spec.keeps_all.assign(8, false);
  own.precision_spec.group = 32;
  own.retrieval_spec = retrieval_defaults(set.retrieval);
  return config;
}

// Calls visit(a, name of a, b, name of b) for every pair of policies of two axes.
template <typename Visit>
int each_pair(const CombinationPairs& pairs, Visit visit) {
  int seen = 0;
  for (size_t a = 0; a < kPairAxes.size(); ++a) {
    for (size_t b = a + 1; b < kPairAxes.size(); ++b) {
      for (const std::string& of_a : pairs.names(kPairAxes[a])) {
        for (const std::string& of_b : pairs.names(kPairAxes[b])) {
          visit(kPairAxes[a], of_a, kPairAxes[b], of_b);
          ++seen;
        }
      }
    }
  }
  return seen;
}

std::string& name_in(PolicySet* set, Choice axis) {
  std::string* const names[] = {&set->scorer,    &set->budget,    &set->layout,    &set->precision,
                                &set->placement, &set->retrieval, &set->partition, &set->identity};
  return *names[static_cast<size_t>(axis) - static_cast<size_t>(Choice::kScorer)];
}

}  // namespace

TEST_CASE("combinations: every pair of policies is accepted or refused as the table says") {
  const CombinationPairs pairs;
  int works = 0;
  const int seen = each_pair(pairs, [&](Choice a, const std::string& of_a, Choice b,
                                        const std::string& of_b) {
    CAPTURE(of_a);
    CAPTURE(of_b);
    const PairVerdict found = pairs.verdict(a, of_a, b, of_b, Computes::kSim);
    PolicySet set = found.set;
    CHECK(name_in(&set, a) == of_a);
    CHECK(name_in(&set, b) == of_b);
    const auto problem = validate_core_config(with_numbers(set, found.prefix_cache));
    works += found.verdict == Support::kWorks ? 1 : 0;
    CHECK_MESSAGE(problem.has_value() == (found.verdict != Support::kWorks), problem.value_or("accepted"));
  });
  CHECK(seen > 1'000);
  CHECK(works > seen / 2);
  CHECK(works < seen);
}

TEST_CASE("combinations: with the other axes at their identity, the policy refuses what a row forbids") {
  const CombinationPairs pairs;
  int refused = 0;
  each_pair(pairs, [&](Choice a, const std::string& of_a, Choice b, const std::string& of_b) {
    PolicySet set;
    name_in(&set, a) = of_a, name_in(&set, b) = of_b;
    for (const bool prefix_cache : {false, true}) {
      const CoreConfig config = with_numbers(set, prefix_cache);
      const auto problem = validate_core_config(config);
      const auto row = cannot_combine(config, Computes::kSim);
      CAPTURE(of_a);
      CAPTURE(of_b);
      CHECK(problem.value_or("") == row.value_or(""));
      // Engines refuse what the policy refuses.
      for (const Computes where : {Computes::kCpu, Computes::kCuda})
        CHECK(cannot_combine(config, where).has_value() >= row.has_value());
      refused += row.has_value() ? 1 : 0;
    }
  });
  CHECK(refused > 500);
}

TEST_CASE("combinations: every row has a sentence, a remedy and axes, and names only its own") {
  Combination plain;
  plain.budget = budget_traits(PolicySet().budget), plain.identity = identity_traits(PolicySet().identity);
  for (const CombinationRow& row : combination_rows()) {
    CAPTURE(row.why);
    CHECK(row.verdict != Support::kWorks);
    CHECK(row.of.first != Choice::kAbsent);
    CHECK(row.remedy.size() > 5);
    CHECK(row.why.size() > 30);
    CHECK(sentence(row, PolicySet(), CoreConfig()).find('{') == std::string::npos);
    CHECK_FALSE(row.applies(plain));
  }
}

TEST_CASE("combinations: the scorer that a session's view depends on is not shared") {
  const CombinationPairs pairs;
  const PairVerdict judge =
      pairs.verdict(Choice::kScorer, "judge_q", Choice::kIdentity, "shared", Computes::kSim);
  CHECK(judge.verdict == Support::kRefused);
  REQUIRE(judge.reason != nullptr);
  CHECK(judge.reason->of.second == Choice::kIdentity);
  CHECK(pairs.verdict(Choice::kScorer, "judge_q", Choice::kIdentity, "session", Computes::kSim).verdict ==
        Support::kWorks);
  CHECK(pairs.verdict(Choice::kPartition, "aot", Choice::kLayout, "paged", Computes::kCuda).verdict ==
        Support::kNotBuilt);
}

TEST_CASE("combinations: attention that is gathered over a prompt is not gathered chunk by chunk on CUDA") {
  CoreConfig config;
  config.prefix_cache = false;
  PolicySet& set = config.policies;
  set.scorer = "h2o_prefill", set.budget = "uniform", set.layout = "compact", set.identity = "none";
  CHECK_FALSE(cannot_combine(config, Computes::kCuda).has_value());
  set.scorer_spec.compression_trigger = CompressionTrigger::kChunkEnd;
  CHECK_FALSE(cannot_combine(config, Computes::kCpu).has_value());
  CHECK(cannot_combine(config, Computes::kCuda).value_or("").find("each chunk alone") != std::string::npos);
}
