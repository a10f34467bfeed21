#include "models/profiles/retention_profile.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "models/profiles/retention_stats.h"
#include "tests/unit/models/test_data.h"

namespace kvtwin {
namespace {

constexpr const char* kScorers[] = {"ea", "fastkvzip", "keydiff", "snapkv"};
constexpr const char* kModels[] = {"gemma-3-12b-it", "gpt-oss-20b", "llama-3.1-8b-instruct",
                                   "qwen3-4b-instruct-2507"};

bool have_profiles() {
  if (have_test_data("retention-profiles")) return true;
  MESSAGE("no retention-profiles below $KVTWIN_DATA: skipped");
  return false;
}

RetentionProfile load(const std::string& path) {
  auto profile = import_retention_npz_file(test_data("retention-profiles/" + path + ".npz"));
  REQUIRE_MESSAGE(profile, (profile ? std::string() : profile.error().text()));
  return std::move(*profile);
}

std::vector<std::pair<std::string, RetentionProfile>> load_all() {
  std::vector<std::pair<std::string, RetentionProfile>> all;
  for (const char* scorer : kScorers) {
    for (const char* model : kModels) {
      for (const char* level : {"profile", "profile_perlayer"})
        all.emplace_back(scorer, load(std::string(scorer) + "/" + model + "/" + level));
    }
  }
  return all;
}

int hundredths(double x) { return static_cast<int>(std::lround(x * 100)); }
int thousandths(double x) { return static_cast<int>(std::lround(x * 1000)); }
double mean(const std::vector<double>& x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

// A small profile for tests without data: 2 layers of 3 heads.
const std::vector<double> kMu = {0, 0.01, 0.2, 0.5, 0.9, 1}, kSigma = {0, 0.02, 0.1, 0.2, 0.1, 0};

}  // namespace

TEST_CASE(
    "retention profile: the table of docs/design/methods/tangram.md#clustering to three decimals, in both "
    "sort orders") {
  if (!have_profiles()) return;
  const struct {
    const char* path;
    // monolithic, adjacent, per layer and cross-layer by mu, ideal, per layer and cross-layer by budget
    int expected[7];
  } rows[] = {
      {"fastkvzip/llama-3.1-8b-instruct/profile_perlayer", {1000, 477, 371, 208, 179, 371, 186}},
      {"fastkvzip/qwen3-4b-instruct-2507/profile_perlayer", {1000, 579, 457, 229, 202, 456, 207}},
      {"ea/llama-3.1-8b-instruct/profile", {1000, 347, 281, 213, 181, 278, 187}},
      {"keydiff/qwen3-4b-instruct-2507/profile_perlayer", {1000, 487, 390, 236, 204, 389, 209}},
      {"snapkv/gpt-oss-20b/profile", {327, 219, 210, 201, 179, 206, 185}},
  };
  for (const auto& row : rows) {
    CAPTURE(row.path);
    const RetentionProfile p = load(row.path);
    const std::vector<double> b = budgets(p.mu, p.sigma, 2);
    const auto fraction = [&](std::span<const double> key, GroupScope scope, uint32_t group) {
      return thousandths(allocated_fraction(b, group_order(p, key, scope), group));
    };
    const int got[7] = {
        fraction(p.mu, GroupScope::kAdjacent, p.heads()), fraction(p.mu, GroupScope::kAdjacent, 4),
        fraction(p.mu, GroupScope::kPerLayer, 4),         fraction(p.mu, GroupScope::kCrossLayer, 4),
        fraction(p.mu, GroupScope::kAdjacent, 1),         fraction(b, GroupScope::kPerLayer, 4),
        fraction(b, GroupScope::kCrossLayer, 4)};
    for (int i = 0; i < 7; ++i) {
      CAPTURE(i);
      CHECK(got[i] == row.expected[i]);
    }
  }
}

// The largest mean fraction of a layer over the mean of all, averaged over layers that retain anything.
double mean_straggler(const RetentionProfile& p) {
  std::vector<double> ratios;
  for (uint32_t l = 0; l < p.layers; ++l) {
    const std::vector<double> layer(p.mu.begin() + l * p.kv_heads, p.mu.begin() + (l + 1) * p.kv_heads);
    if (mean(layer) > 0) ratios.push_back(*std::max_element(layer.begin(), layer.end()) / mean(layer));
  }
  return mean(ratios);
}

TEST_CASE("retention profile: mu + 2 sigma reserves 1.28 to 2.24 times the mean, and covers 93.9 to 98.6 %") {
  if (!have_profiles()) return;
  std::map<std::string, std::vector<double>> by_model;
  std::vector<double> absolute, head_fractions, covered, stragglers;
  for (const auto& [scorer, p] : load_all()) {
    const std::vector<double> b = budgets(p.mu, p.sigma, 2);
    absolute.push_back(inflation(p.mu, b));
    by_model[p.model].push_back(absolute.back());
    covered.push_back(coverage(p, b));
    double sum = 0;
    for (size_t i = 0; i < p.fraction_mu.size(); ++i) sum += p.fraction_mu[i] + 2 * p.fraction_sigma[i];
    head_fractions.push_back(sum / static_cast<double>(p.heads()));
    CHECK(mean(p.fraction_mu) == doctest::Approx(1).epsilon(1e-12));
    stragglers.push_back(mean_straggler(p));
  }
  CHECK(absolute.size() == 32);
  const auto range = [](const std::vector<double>& x) {
    const auto [low, high] = std::minmax_element(x.begin(), x.end());
    return std::pair(hundredths(*low), hundredths(*high));
  };
  CHECK(range(absolute) == std::pair(128, 224));
  CHECK(range(head_fractions) == std::pair(128, 202));
  CHECK(range(by_model["meta-llama/Llama-3.1-8B-Instruct"]) == std::pair(210, 224));
  CHECK(range(by_model["Qwen/Qwen3-4B-Instruct-2507"]) == std::pair(134, 179));
  CHECK(range(by_model["openai/gpt-oss-20b"]) == std::pair(201, 224));
  const auto [worst, best] = std::minmax_element(covered.begin(), covered.end());
  CHECK(thousandths(*worst) == 939);
  CHECK(thousandths(*best) == 986);
  // docs/design/methods/tangram.md#partitions: the slowest split of a fixed partition takes 1.4 to 5.0 times
  // the mean (means over a profile's layers).
  CHECK(range(stragglers) == std::pair(143, 505));
}

TEST_CASE(
    "retention profile: rank stability, as docs/design/methods/tangram.md#numbers has it and with ties "
    "averaged") {
  if (!have_profiles()) return;
  std::map<std::string, std::vector<double>> by_index, averaged;
  double lowest = 1;
  for (const auto& [scorer, p] : load_all()) {
    by_index[scorer].push_back(rank_stability(p, TieOrder::kByIndex).mean);
    averaged[scorer].push_back(rank_stability(p, TieOrder::kAverage).mean);
    if (scorer == "snapkv") lowest = std::min(lowest, rank_stability(p, TieOrder::kAverage).lowest);
  }
  const auto range = [](const std::vector<double>& x) {
    const auto [low, high] = std::minmax_element(x.begin(), x.end());
    return std::pair(hundredths(*low), hundredths(*high));
  };
  CHECK(range(by_index["fastkvzip"]) == std::pair(88, 96));
  CHECK(range(by_index["keydiff"]) == std::pair(93, 97));
  CHECK(range(by_index["ea"]) == std::pair(86, 98));
  CHECK(range(by_index["snapkv"]) == std::pair(65, 91));
  CHECK(hundredths(lowest) == 44);
  // Heads that retain nothing tie. Ranked by index they agree with themselves; ranked by averages they do
  // not count.
  CHECK(range(averaged["fastkvzip"]) == std::pair(86, 96));
  CHECK(range(averaged["ea"]) == std::pair(84, 98));
  CHECK(range(averaged["snapkv"]) == std::pair(65, 91));
}

TEST_CASE("retention profile: the retained fraction changes with length because the window is fixed") {
  if (!have_profiles()) return;
  const RetentionProfile p = load("fastkvzip/llama-3.1-8b-instruct/profile_perlayer");
  CHECK(p.window_tokens == 4096);
  CHECK(p.sink_tokens == 32);
  CHECK(p.base_ratio == 0.3);
  CHECK(p.layers == 32);
  CHECK(p.kv_heads == 8);
  CHECK(p.context_tokens.size() == 28);
  CHECK(p.scorer == "fastkvzip");
  for (size_t s = 0; s < 28; ++s) {
    const auto sample = std::span(p.samples).subspan(s * 256, 256);
    const double kept = std::accumulate(sample.begin(), sample.end(), 0.0) / 256;
    // 30 % of context and sinks are requested; window and sinks are not counted.
    const double n = p.context_tokens[s], sinks = p.sink_tokens, window = p.window_tokens;
    CHECK(std::abs(kept - std::clamp((0.3 * (n + sinks) - window - sinks) / n, 0.0, 1.0)) < 0.002);
  }
  CHECK(thousandths(adjusted_ratio(0.3, 18'023, 4096)) == 94);
  CHECK(adjusted_ratio(0.3, 4000, 4096) == 1);
  CHECK(adjusted_ratio(0.3, 10'000, 4096) == 0);
  CHECK(adjusted_ratio(1, 10'000, 4096) == 1);
}

TEST_CASE("retention profile: fractions in Q0.32 are rounded, and limited to 1") {
  const double fractions[] = {0, 0.5, 1, 2, -1};
  CHECK(to_q32(fractions) == std::vector<uint64_t>{0, 1ull << 31, 1ull << 32, 1ull << 32, 0});
}

TEST_CASE("retention profile: textproto reads the tables back, and errors are named") {
  RetentionProfile p;
  p.name = "x", p.base_ratio = 0.3, p.layers = 2, p.kv_heads = 3;
  p.layer_ids = {0, 1}, p.context_tokens = {100}, p.mu = kMu, p.sigma = kSigma;
  p.fraction_mu.assign(6, 1), p.fraction_sigma.assign(6, 0.5);
  const std::string text = retention_textproto(p, 2);
  const auto back = parse_retention_profile(text, "p.textproto");
  REQUIRE_MESSAGE(back, (back ? std::string() : back.error().text()));
  CHECK(back->mu == p.mu);
  CHECK(back->sigma == p.sigma);
  CHECK(back->fraction_sigma == p.fraction_sigma);
  CHECK(retention_textproto(*back, 2) == text);
  const auto complaint = [&](const char* from, const char* to) {
    std::string problem = text;
    problem.replace(problem.find(from), std::string(from).size(), to);
    const auto r = parse_retention_profile(problem, "p.textproto");
    return r ? std::string() : r.error().text();
  };
  CHECK(complaint("layers: 2", "layers: 3").find("names 2 layers; 3 are right") != std::string::npos);
  CHECK(complaint("kv_heads: 3", "kv_heads: 4").find("mu has 6 entries; 8 are right") != std::string::npos);
  CHECK(complaint("base_ratio: 0.3", "base_ratio: nan").find("base_ratio is nan") != std::string::npos);
  CHECK(complaint("mu: [0, 0.01", "mu: [0, 1.01").find("mu has the value 1.01") != std::string::npos);
  CHECK(complaint("base_ratio", "base_ration").find("did you mean") != std::string::npos);
}

TEST_CASE(
    "retention profile: the fractions retained in each context give the tables, and are stored on request") {
  RetentionProfile p;
  p.name = "x", p.base_ratio = 0.3, p.layers = 1, p.kv_heads = 2;
  p.layer_ids = {0}, p.context_tokens = {100, 200};
  p.samples = {0.25, 0.5, 0.75, 0.5};
  complete_tables(&p);
  CHECK(p.mu == std::vector<double>{0.5, 0.5});
  CHECK(p.sigma == std::vector<double>{0.25, 0});
  CHECK(p.fraction_mu[0] == doctest::Approx((0.25 / 0.375 + 0.75 / 0.625) / 2));
  const auto without = parse_retention_profile(retention_textproto(p, 2), "p.textproto");
  REQUIRE(without);
  CHECK(without->samples.empty());
  const std::string text = retention_textproto(p, 2, true);
  const auto with = parse_retention_profile(text, "p.textproto");
  REQUIRE(with);
  CHECK(with->samples == p.samples);
  CHECK(coverage(*with, budgets(with->mu, with->sigma, 0)) == doctest::Approx(0.75));
  std::string problem = text;
  problem.replace(problem.find("retained: [0.25, "), 17, "retained: [");
  const auto refused = parse_retention_profile(problem, "p.textproto");
  REQUIRE(!refused);
  CHECK(refused.error().text().find("retained has 3 entries; 4 of 2 contexts are right") !=
        std::string::npos);
}

}  // namespace kvtwin
