#include "scenarios/load/scorer_options.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/methods/registry.h"
#include "scenarios/app/compose.h"
#include "tests/support/source_dir.h"

namespace kvtwin {
namespace {

const std::string kOptionsPath = testing::source_dir() + "/scenarios/some.textproto";
const std::string kRest =
    "model { name: \"llama-3.1-8b\" }\nhardware { node: \"h200\" }\n"
    "trace { path: \"shipped/coding_agents_small.textproto\" }\n";

std::string with(const std::string& policies) { return kRest + "policies { " + policies + " }\n"; }

Scenario good(const std::string& policies) {
  auto scenario = parse_scenario(with(policies), kOptionsPath, {});
  if (!scenario) FAIL(scenario.error().front().text());
  return std::move(*scenario);
}

}  // namespace

TEST_CASE(
    "scorer options: every scorer has its published values, in policy and engine, and reloads to the same") {
  for (const PolicyInfo& info : all_policies()) {
    if (info.axis != "scorer") continue;
    const std::string name(info.name);
    CAPTURE(name);
    const std::string needed = name == "external" ? " scorer_options { command: \"true\" }" : "";
    const Scenario scenario = good("identity: \"session\" scorer: \"" + name + "\"" + needed);
    const ScorerSpec spec = scorer_spec(scenario.values.policies());
    CHECK_FALSE(validate_scorer(name, spec).has_value());
    CHECK(captured_queries(name, spec) == captured_queries(name, {}));
    const kernels::ScoreSpec score = score_spec(scenario.values);
    CHECK(score.scorer->name == name);
    const std::string text = resolved_textproto(scenario);
    const auto again = parse_scenario(text, kOptionsPath, {});
    REQUIRE(again);
    CHECK(resolved_textproto(*again) == text);
  }
  CHECK_FALSE(good("").values.policies().has_scorer_options());
}

TEST_CASE("scorer options: written options reach the policy and the kernels") {
  Scenario scenario = good(
      "scorer: \"snapkv\" scorer_options { code_base: \"tangram\" compression_trigger: \"chunk_end\" "
      "window_closed: true "
      "query_tokens: 16 }");
  ScorerSpec spec = scorer_spec(scenario.values.policies());
  CHECK(spec.compression_trigger == CompressionTrigger::kChunkEnd);
  CHECK(spec.window_closed);
  CHECK(spec.query_tokens == 16);
  kernels::ScoreSpec score = score_spec(scenario.values);
  CHECK(score.window.window == 16);
  CHECK(score.window.kernel == 7);
  CHECK(score.window.order == kernels::PoolOrder::kReduceLogitsFirst);
  CHECK_FALSE(score.window.causal);

  score = score_spec(
      good("identity: \"none\" scorer: \"expected_attention\" scorer_options { eps: 0.01 future: 64 }")
          .values);
  CHECK(score.expected.eps == 0.01f);
  CHECK(score.expected.future == 64);
  CHECK(score.expected.covariance);
  score = score_spec(
      good("identity: \"none\" scorer: \"intent_rule\" scorer_options { gamma: 0.5 mode: \"query\" }")
          .values);
  CHECK(score.intent.gamma == 0.5f);
  CHECK(score.intent_mode == kernels::IntentMode::kQuery);
  CHECK(score.intent.query_norm == kernels::QueryNorm::kUnit);
  CHECK(score.intent.memory == kernels::MemoryForm::kSum);
  score = score_spec(good("identity: \"none\" scorer: \"intent_rule\" "
                          "scorer_options { query_norm: \"raw\" memory: \"max_over_turns\" }")
                         .values);
  CHECK(score.intent.query_norm == kernels::QueryNorm::kRaw);
  CHECK(score.intent.memory == kernels::MemoryForm::kMaxOverTurns);
  CHECK(score_spec(good("scorer: \"random\" scorer_options { seed: 9 }").values).seed == 9);
  CHECK(score_spec(good("scorer: \"random\"").values).seed == 42);  // the scenario's seed
}

TEST_CASE("scorer options: the number of probe tokens is the policy's") {
  const auto fine =
      compose_engines(good("identity: \"session\" scorer: \"judge_q\" scorer_options { probe_tokens: 16 }"));
  REQUIRE(fine);
  CHECK(fine->options.engines.front().policies.scorer_spec.probe_tokens == 16);
}

}  // namespace kvtwin
