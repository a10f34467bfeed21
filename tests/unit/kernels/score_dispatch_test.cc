// The common entry point (kernels/scoring/score.h): every scorer gives the same scores through it as when
// called directly, and policy and engine use the same names of scorers.

#include <doctest/doctest.h>

#include <limits>
#include <set>
#include <string>

#include "engine/methods/registry.h"
#include "kernels/scoring/score.h"
#include "kernels/scoring/score_keys.h"
#include "kernels/scoring/score_position.h"
#include "tests/unit/kernels/shapes.h"

using namespace kvtwin;
using namespace kvtwin::kernels;
using namespace kvtwin::testing;

namespace {

constexpr uint32_t kHeads = 2, kGroup = 2, kTokens = 40, kDim = 16;

struct TestBackend {
  Prng prng{91};
  Tensor k = random_tensor(&prng, kHeads, kTokens, kDim, 2.0f);
  Tensor v = random_tensor(&prng, kHeads, kTokens, kDim);
  Tensor q = random_tensor(&prng, kHeads* kGroup, 8, kDim, 2.0f);
  Tensor own = random_tensor(&prng, kHeads, 8, kDim);
  std::vector<uint32_t> positions = last_positions(kTokens, 8);
  std::vector<float> inv_freq = std::vector<float>(kDim / 2, 0.1f);
  Tensor output = random_tensor(&prng, 1, 12, kHeads* kGroup* kDim);
  OutputProjection projection{12, kHeads* kGroup, output.values};
  std::vector<float> sums = std::vector<float>(kHeads * kTokens, 1.0f);
  std::vector<float> memory = random_tensor(&prng, 1, 1, kHeads* kGroup* kDim).values;
  std::vector<uint32_t> stamps{1, 2, 3, 4, 5, 6};

  ScoreInputs inputs() {
    ScoreInputs in;
    in.tokens = kTokens;
    in.positions = {kTokens, {}};
    in.k = k.view();
    in.v = v.view();
    in.q = q.view();
    in.q_positions = positions;
    in.q_hat = q.view();
    in.accumulators = in.log_beta = packed_scores(sums, kHeads, kTokens);
    in.stamps = stamps;
    in.memory = memory;
    in.query_heads = kHeads * kGroup;
    in.rope = {inv_freq, 1.0f};
    in.output = &projection;
    return in;
  }
};

std::vector<float> through_the_door(const ScoreSpec& spec, const ScoreInputs& in) {
  const uint32_t heads = spec.scorer->scores_tokens() ? 1 : kHeads;
  std::vector<float> out(heads * kTokens, 0.0f);
  score_entries(spec, in, packed_scores(out, heads, kTokens));
  return out;
}

}  // namespace

TEST_CASE("score: policy and engine know the same scorers by the same names") {
  std::set<std::string> policy;
  for (const PolicyInfo& info : all_policies()) {
    if (info.axis == "scorer") policy.insert(std::string(info.name));
  }
  CHECK(policy.size() == 23);
  for (const std::string& name : policy) {
    CAPTURE(name);
    const ScorerDefinition* const scorer = find_scorer(name);
    REQUIRE(scorer != nullptr);
    CHECK(scorer->name == name);
  }
  CHECK(all_scorers().size() == policy.size());
  CHECK(find_scorer("snap_kv") == nullptr);
}

TEST_CASE("score: the entry point and the direct call give the same bits") {
  TestBackend backend;
  const ScoreInputs in = backend.inputs();
  const AttentionScores attention_scores{in.q, in.q_positions, in.k, in.positions, {}, false};
  std::vector<float> alone(kHeads * kTokens);
  const ScoreView out = packed_scores(alone, kHeads, kTokens);

  ScoreSpec spec = score_spec("snapkv");
  score_window(spec.window, attention_scores, out);
  CHECK(through_the_door(spec, in) == alone);
  spec = score_spec("critical_kv");
  score_window(spec.window, attention_scores, out);
  score_critical(backend.projection, in.v, 5, out);
  ScoreInputs budgeted = in;
  budgeted.retained = 10;
  CHECK(through_the_door(spec, budgeted) == alone);
  score_tova(attention_scores, out);
  CHECK(through_the_door(score_spec("tova"), in) == alone);
  score_knorm(in.k, out);
  CHECK(through_the_door(score_spec("knorm"), in) == alone);
  score_keydiff(in.k, out);
  CHECK(through_the_door(score_spec("keydiff"), in) == alone);
  spec = score_spec("expected_attention");
  score_expected(spec.expected, in.rope, in.q_hat, in.k, in.v, in.positions, kTokens, out);
  CHECK(through_the_door(spec, in) == alone);
  score_streaming(in.positions, 128, out);
  CHECK(through_the_door(score_spec("duo_attention"), in) == alone);
  score_random(0, 0, 0, in.positions, out);
  CHECK(through_the_door(score_spec("random"), in) == alone);
  score_trimkv({}, in.log_beta, {}, in.positions, kTokens, out);
  CHECK(through_the_door(score_spec("trimkv"), in) == alone);

  spec = score_spec("h2o_prefill");
  const std::vector<float> observed = through_the_door(spec, in);
  for (uint32_t p = 0; p < kTokens; ++p) CHECK(observed[p] == 1.0f / static_cast<float>(kTokens - p));
  spec = score_spec("raas");
  const std::vector<float> stamped = through_the_door(spec, in);
  CHECK(stamped[0] == 1.0f);
  CHECK(stamped[16] == 2.0f);
  CHECK(stamped[kTokens + 39] == 6.0f);
}

TEST_CASE("G-4 every scorer gives the same bits every time") {
  TestBackend backend;
  ScoreInputs in = backend.inputs();
  in.own_k = backend.own.view();
  Prng prng(92);
  const Tensor x = random_tensor(&prng, 1, kTokens, 24),
               w = random_tensor(&prng, 1, 1, 24 * 16 * kHeads * kGroup);
  const FastKvzipGate gate{kHeads,
                           kGroup,
                           24,
                           w.values,
                           backend.q.values,
                           std::span(w.values).first(16),
                           std::span(w.values).first(24 * 16 * kHeads),
                           std::span(w.values).first(16),
                           std::span(w.values).first(16 * 16 * kHeads),
                           std::span(w.values).first(4)};
  in.gate = &gate;
  in.hidden = x.view();
  for (const PolicyInfo& info : all_policies()) {
    if (info.axis != "scorer" || info.name == "none") continue;
    CAPTURE(info.name);
    const ScoreSpec spec = score_spec(info.name);
    const std::vector<float> first = through_the_door(spec, in), second = through_the_door(spec, in);
    CHECK(first == second);
    CHECK(std::any_of(first.begin(), first.end(), [&](float s) { return s != first[0]; }) ==
          (info.name != "h2o" && info.name != "duo_attention"));
  }
}

TEST_CASE("G-4 a NaN among the keys is counted by selection, not hidden") {
  TestBackend backend;
  backend.k.at(1, 7)[3] = std::numeric_limits<float>::quiet_NaN();
  const ScoreSpec spec = score_spec("snapkv");
  ScoreInputs in = backend.inputs();
  const std::vector<float> scores = through_the_door(spec, in);
  uint64_t healthy = 0, spoilt = 0;
  const RowSet window = sink_and_window(kTokens, 0, 8);
  CHECK(select_rows(std::span(scores).first(kTokens), window, 5, &healthy).size() == 13);
  CHECK(select_rows(std::span(scores).subspan(kTokens), window, 5, &spoilt).size() == 13);
  CHECK(healthy == 0);
  CHECK(spoilt == kTokens - 8);
}

TEST_CASE("score: Judge Q's probe tokens attend to every KV entry, at any positions") {
  TestBackend backend;
  ScoreInputs in = backend.inputs();
  in.own_k = backend.own.view();
  const ScoreSpec spec = score_spec("judge_q");
  const std::vector<float> scores = through_the_door(spec, in);
  in.q_positions = {};
  CHECK(through_the_door(spec, in) == scores);
  CHECK(std::none_of(scores.begin(), scores.end(), [](float s) { return s == kMustStay; }));
}

TEST_CASE("score: IntentKV adds layer by layer and is finished once") {
  TestBackend backend;
  ScoreInputs in = backend.inputs();
  in.layers = 2;
  ScoreSpec spec = score_spec("intent_rule");
  std::vector<float> out(kTokens, 0.0f), twice(kTokens, 0.0f);
  score_entries(spec, in, packed_scores(out, 1, kTokens));
  score_entries(spec, in, packed_scores(out, 1, kTokens));
  double sum = 0;
  for (const float score : out) sum += score;
  CHECK(sum == doctest::Approx(1.0).epsilon(1e-5));
  twice = out;
  spec.rule_norm = RuleNorm::kTimesCandidates;
  finish_scores(spec, {}, packed_scores(twice, 1, kTokens));
  for (uint32_t p = 0; p < kTokens; ++p) CHECK(twice[p] == out[p] * kTokens);
  const std::vector<float> corrections(kTokens, 0.5f);
  twice = out;
  finish_scores(spec, corrections, packed_scores(twice, 1, kTokens));
  for (uint32_t p = 0; p < kTokens; ++p) CHECK(twice[p] == out[p] * kTokens + 0.5f);
}

TEST_CASE("score: the scorers that score every decoded token are known") {
  std::set<std::string> watching;
  for (const PolicyInfo& info : all_policies()) {
    if (info.axis == "scorer" && find_scorer(info.name)->watches_decodes)
      watching.insert(std::string(info.name));
  }
  CHECK(watching == std::set<std::string>{"h2o", "r_kv", "raas", "tova"});
}

TEST_CASE("score: the captures that each scorer needs") {
  using namespace capture;
  CHECK(find_scorer("streaming_llm")->captures == 0);
  CHECK(find_scorer("knorm")->captures == kKeys);
  CHECK(find_scorer("snapkv")->captures == (kKeys | kWindowQueries));
  CHECK(find_scorer("expected_attention")->captures == (kKeys | kValues | kAllQueries));
  CHECK((find_scorer("fastkvzip")->captures & (kKeys | kHidden)) == kHidden);
  CHECK((find_scorer("judge_q")->captures & kProbeTokens) != 0);
  CHECK((find_scorer("kvzip")->captures & kProbeTokens) != 0);
  CHECK((find_scorer("intent_rule")->captures & kSessionMemory) != 0);
}
