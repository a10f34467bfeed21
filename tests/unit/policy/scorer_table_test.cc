// The policy side of the scorers against docs/design/methods/uniform.md
// (compression triggers), docs/design/methods/composition.md#causality (sharing),
// docs/design/methods/judge-q.md#inference and docs/design/methods/uniform.md#kvzip (probe tokens).

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "engine/methods/axis_factories.h"
#include "engine/methods/registry.h"
#include "engine/methods/scorer_spec.h"

using namespace kvtwin;

namespace {

constexpr Causality kClosed = Causality::kPrefixClosed, kSuffix = Causality::kSuffixDependent;

bool message(const std::optional<std::string>& text, const std::string& part) {
  return text.has_value() && text->find(part) != std::string::npos;
}

ScorerSpec at(CompressionTrigger compression_trigger, bool window_closed = false) {
  ScorerSpec spec;
  spec.compression_trigger = compression_trigger;
  spec.window_closed = window_closed;
  return spec;
}

}  // namespace

TEST_CASE("scorers: trigger, causality and probe tokens of each") {
  struct Row {
    const char* name;
    CompressionTrigger compression_trigger;
    Causality causality;
    uint32_t probe_tokens;  // of one pass, at most
    bool all_layers;
    uint32_t captured;
  };
  const Row rows[] = {
      {"none", CompressionTrigger::kAtNoTime, kClosed, 0, false, 0},
      {"streaming_llm", CompressionTrigger::kChunkEnd, kClosed, 0, false, 0},
      {"h2o", CompressionTrigger::kDecodeStep, kSuffix, 0, false, 0},
      {"h2o_prefill", CompressionTrigger::kPromptEnd, kSuffix, 0, false, 0},
      {"snapkv", CompressionTrigger::kPromptEnd, kSuffix, 0, false, 64},
      {"pyramidkv", CompressionTrigger::kPromptEnd, kSuffix, 0, false, 64},
      {"tova", CompressionTrigger::kPromptEnd, kSuffix, 0, false, 1},
      {"knorm", CompressionTrigger::kChunkEnd, kClosed, 0, false, 0},
      {"keydiff", CompressionTrigger::kChunkEnd, kClosed, 0, false, 0},
      {"expected_attention", CompressionTrigger::kPromptEnd, kSuffix, 0, false, 0},
      {"kvzip", CompressionTrigger::kPromptEnd, kSuffix, 2'072, true, 0},
      {"fastkvzip", CompressionTrigger::kChunkEnd, kClosed, 0, false, 0},
      {"trimkv", CompressionTrigger::kChunkEnd, kClosed, 0, false, 0},
      {"raas", CompressionTrigger::kDecodeStep, kSuffix, 0, false, 1},
      {"duo_attention", CompressionTrigger::kChunkEnd, kClosed, 0, false, 0},
      {"razor_attention", CompressionTrigger::kChunkEnd, kClosed, 0, false, 0},
      {"judge_q", CompressionTrigger::kPromptEnd, kSuffix, 32, false, 32},
      {"intent_rule", CompressionTrigger::kPromptEnd, kSuffix, 0, true, 0},
      {"intent_residual", CompressionTrigger::kPromptEnd, kSuffix, 0, true, 0},
      {"finch", CompressionTrigger::kPromptEnd, kSuffix, 0, false, 32},
      {"critical_kv", CompressionTrigger::kPromptEnd, kSuffix, 0, false, 64},
      {"r_kv", CompressionTrigger::kDecodeStep, kSuffix, 0, false, 8},
      {"external", CompressionTrigger::kPromptEnd, kSuffix, 0, false, 32},
      {"random", CompressionTrigger::kChunkEnd, kClosed, 0, false, 0},
  };
  std::set<std::string> listed, tabled;
  for (const PolicyInfo& info : all_policies()) {
    if (info.axis == "scorer") listed.insert(std::string(info.name));
  }
  for (const Row& row : rows) {
    CAPTURE(row.name);
    tabled.insert(row.name);
    CHECK_FALSE(validate_scorer(row.name, {}).has_value());
    const auto scorer = make_scorer(row.name, {});
    CHECK(scorer->compression_trigger() == row.compression_trigger);
    CHECK(scorer->causality() == row.causality);
    CHECK(scorer->passes(4).tokens_max() == row.probe_tokens);
    CHECK(runs_passes(row.name) == (row.probe_tokens > 0));
    CHECK(scorer->needs_all_layers() == row.all_layers);
    CHECK(captured_queries(row.name, {}) == row.captured);
  }
  CHECK(tabled == listed);
}

TEST_CASE("scorers: at chunk ends a window scorer is prefix-closed only if its window is closed there") {
  for (const char* name : {"snapkv", "pyramidkv", "tova", "h2o_prefill", "critical_kv"}) {
    CAPTURE(name);
    CHECK(make_scorer(name, at(CompressionTrigger::kChunkEnd))->causality() == kSuffix);
    CHECK(make_scorer(name, at(CompressionTrigger::kChunkEnd, true))->causality() == kClosed);
    CHECK(make_scorer(name, at(CompressionTrigger::kPromptEnd, true))->causality() == kSuffix);
  }
  CHECK(make_scorer("expected_attention", at(CompressionTrigger::kChunkEnd))->causality() == kClosed);
  CHECK(make_scorer("finch", at(CompressionTrigger::kChunkEnd))->causality() ==
        kSuffix);  // its question comes last
}

TEST_CASE("scorers: a scorer that ranks with later tokens is not prefix-closed") {
  for (const char* name : {"streaming_llm", "knorm", "fastkvzip", "trimkv", "random"}) {
    CAPTURE(name);
    for (const CompressionTrigger compression_trigger :
         {CompressionTrigger::kPromptEnd, CompressionTrigger::kDecodeStep}) {
      REQUIRE_FALSE(validate_scorer(name, at(compression_trigger)).has_value());
      CHECK(make_scorer(name, at(compression_trigger))->compression_trigger() == compression_trigger);
      CHECK(make_scorer(name, at(compression_trigger))->causality() == kSuffix);
    }
    CHECK(make_scorer(name, at(CompressionTrigger::kChunkEnd))->causality() == kClosed);
  }
}

TEST_CASE("scorers: a session's memory and the keys are known when a turn starts") {
  for (const char* name :
       {"intent_rule", "intent_residual", "knorm", "keydiff", "fastkvzip", "streaming_llm"}) {
    CAPTURE(std::string(name));
    REQUIRE_FALSE(validate_scorer(name, at(CompressionTrigger::kTurnStart)).has_value());
    CHECK(make_scorer(name, at(CompressionTrigger::kTurnStart))->causality() == kSuffix);
  }
  CHECK(message(validate_scorer("judge_q", at(CompressionTrigger::kTurnStart)),
                "cannot work at the start of a turn"));
}

TEST_CASE("scorers: impossible settings are refused with a remedy") {
  CHECK(message(validate_scorer("judge_q", at(CompressionTrigger::kChunkEnd)),
                "it works at the end of the prompt"));
  CHECK(
      message(validate_scorer("kvzip", at(CompressionTrigger::kDecodeStep)), "cannot work at decode steps"));
  CHECK(message(validate_scorer("intent_rule", at(CompressionTrigger::kDecodeStep)),
                "at the end of the prompt"));
  CHECK(message(validate_scorer("h2o", at(CompressionTrigger::kPromptEnd)), "it works at decode steps"));
  CHECK(message(validate_scorer("snapkv", at(CompressionTrigger::kTurnStart)),
                "at chunk ends, at the end of the prompt"));
  CHECK(message(validate_scorer("none", at(CompressionTrigger::kChunkEnd)), "it works at no time"));
  CHECK(message(validate_scorer("knorm", at(CompressionTrigger::kChunkEnd, true)), "window_closed: false"));
  ScorerSpec spec;
  spec.probe_tokens = 16;
  CHECK_FALSE(validate_scorer("judge_q", spec).has_value());
  CHECK(make_scorer("judge_q", spec)->passes(0).tokens_max() == 16);
  CHECK(captured_queries("judge_q", spec) == 16);
  CHECK(message(validate_scorer("snapkv", spec), "probe_tokens is 16"));
  spec = {};
  spec.query_tokens = 32;
  CHECK_FALSE(validate_scorer("snapkv", spec).has_value());
  CHECK(captured_queries("snapkv", spec) == 32);
  CHECK(message(validate_scorer("knorm", spec), "query_tokens is 32"));
  spec.query_tokens = 70'000;
  CHECK(message(validate_scorer("snapkv", spec), "70000"));
  CHECK_FALSE(validate_scorer("kvzip", at(CompressionTrigger::kChunkEnd)).has_value());
  spec = {};
  spec.repeat_tokens = 0;
  CHECK(message(validate_scorer("kvzip", spec), "repeat_tokens"));
}

TEST_CASE("scorers: a configuration is refused for its scorer's numbers too") {
  CoreConfig config;
  config.pages_gpu = 100;
  config.policies.scorer = "judge_q";
  config.policies.identity = "session";
  CHECK_FALSE(validate_core_config(config).has_value());
  config.policies.scorer_spec.compression_trigger = CompressionTrigger::kDecodeStep;
  CHECK(message(validate_core_config(config), "scorer judge_q cannot work at decode steps"));
  config.policies.scorer_spec = {};
  config.policies.identity = "shared";
  CHECK(message(validate_core_config(config), "leak one session's view"));
  config.policies.scorer = "knorm";
  CHECK_FALSE(validate_core_config(config).has_value());
  config.policies.scorer_spec.compression_trigger = CompressionTrigger::kPromptEnd;
  CHECK(message(validate_core_config(config), "leak one session's view"));
}
