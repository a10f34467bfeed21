// The scorers' policy halves against METHODS: 1.x (moments), 7.3 (who may share), 5.2 and 1.7 (extra rows).

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "engine/policy/axis_factories.h"
#include "engine/policy/registry.h"
#include "engine/policy/scorer_spec.h"

using namespace kvtwin;

namespace {

constexpr Causality kClosed = Causality::kPrefixClosed, kSuffix = Causality::kSuffixDependent;

bool says(const std::optional<std::string>& text, const std::string& part) {
  return text.has_value() && text->find(part) != std::string::npos;
}

ScorerSpec at(Moment moment, bool window_closed = false) {
  ScorerSpec spec;
  spec.moment = moment;
  spec.window_closed = window_closed;
  return spec;
}

}  // namespace

TEST_CASE("scorers: when each works, who may share what it kept, and what it adds to a step") {
  struct Row {
    const char* name;
    Moment moment;
    Causality causality;
    uint32_t probe_rows;
    bool all_layers;
    uint32_t captured;
  };
  const Row rows[] = {
      {"none", Moment::kAtNoTime, kClosed, 0, false, 0},
      {"streaming_llm", Moment::kChunkEnd, kClosed, 0, false, 0},
      {"h2o", Moment::kDecodeStep, kSuffix, 0, false, 0},
      {"h2o_prefill", Moment::kPromptEnd, kSuffix, 0, false, 0},
      {"snapkv", Moment::kPromptEnd, kSuffix, 0, false, 64},
      {"pyramidkv", Moment::kPromptEnd, kSuffix, 0, false, 64},
      {"tova", Moment::kPromptEnd, kSuffix, 0, false, 1},
      {"knorm", Moment::kChunkEnd, kClosed, 0, false, 0},
      {"keydiff", Moment::kChunkEnd, kClosed, 0, false, 0},
      {"expected_attention", Moment::kPromptEnd, kSuffix, 0, false, 0},
      {"kvzip", Moment::kPromptEnd, kSuffix, 0, true, 0},
      {"fastkvzip", Moment::kChunkEnd, kClosed, 0, false, 0},
      {"trimkv", Moment::kChunkEnd, kClosed, 0, false, 0},
      {"raas", Moment::kDecodeStep, kSuffix, 0, false, 1},
      {"duo_attention", Moment::kChunkEnd, kClosed, 0, false, 0},
      {"razor_attention", Moment::kChunkEnd, kClosed, 0, false, 0},
      {"judge_q", Moment::kPromptEnd, kSuffix, 32, false, 32},
      {"intent_rule", Moment::kPromptEnd, kSuffix, 0, true, 0},
      {"intent_residual", Moment::kPromptEnd, kSuffix, 0, true, 0},
      {"finch", Moment::kPromptEnd, kSuffix, 0, false, 32},
      {"critical_kv", Moment::kPromptEnd, kSuffix, 0, false, 64},
      {"random", Moment::kChunkEnd, kClosed, 0, false, 0},
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
    CHECK(scorer->moment() == row.moment);
    CHECK(scorer->causality() == row.causality);
    CHECK(scorer->probe_rows() == row.probe_rows);
    CHECK(scorer->needs_all_layers() == row.all_layers);
    CHECK(captured_rows(row.name, {}) == row.captured);
  }
  CHECK(tabled == listed);
}

TEST_CASE("scorers: at chunk ends a window scorer is prefix-closed only if its window is closed there") {
  for (const char* name : {"snapkv", "pyramidkv", "tova", "h2o_prefill", "critical_kv"}) {
    CAPTURE(name);
    CHECK(make_scorer(name, at(Moment::kChunkEnd))->causality() == kSuffix);
    CHECK(make_scorer(name, at(Moment::kChunkEnd, true))->causality() == kClosed);
    CHECK(make_scorer(name, at(Moment::kPromptEnd, true))->causality() == kSuffix);
  }
  CHECK(make_scorer("expected_attention", at(Moment::kChunkEnd))->causality() == kClosed);
  CHECK(make_scorer("finch", at(Moment::kChunkEnd))->causality() == kSuffix);  // its question comes last
}

TEST_CASE("scorers: ranked against what follows, no scorer is prefix-closed") {
  for (const char* name : {"streaming_llm", "knorm", "fastkvzip", "trimkv", "random"}) {
    CAPTURE(name);
    for (const Moment moment : {Moment::kPromptEnd, Moment::kDecodeStep}) {
      REQUIRE_FALSE(validate_scorer(name, at(moment)).has_value());
      CHECK(make_scorer(name, at(moment))->moment() == moment);
      CHECK(make_scorer(name, at(moment))->causality() == kSuffix);
    }
    CHECK(make_scorer(name, at(Moment::kChunkEnd))->causality() == kClosed);
  }
}

TEST_CASE("scorers: what a session's memory or the keys say is known when a turn starts") {
  for (const char* name :
       {"intent_rule", "intent_residual", "knorm", "keydiff", "fastkvzip", "streaming_llm"}) {
    CAPTURE(std::string(name));
    REQUIRE_FALSE(validate_scorer(name, at(Moment::kTurnStart)).has_value());
    CHECK(make_scorer(name, at(Moment::kTurnStart))->causality() == kSuffix);
  }
  CHECK(says(validate_scorer("judge_q", at(Moment::kTurnStart)), "cannot work at the start of a turn"));
}

TEST_CASE("scorers: what cannot work is refused, with the way out") {
  CHECK(says(validate_scorer("judge_q", at(Moment::kChunkEnd)), "it works at the end of the prompt"));
  CHECK(says(validate_scorer("kvzip", at(Moment::kChunkEnd)), "cannot work at chunk ends"));
  CHECK(says(validate_scorer("intent_rule", at(Moment::kDecodeStep)), "at the end of the prompt"));
  CHECK(says(validate_scorer("h2o", at(Moment::kPromptEnd)), "it works at decode steps"));
  CHECK(says(validate_scorer("snapkv", at(Moment::kTurnStart)), "at chunk ends, at the end of the prompt"));
  CHECK(says(validate_scorer("none", at(Moment::kChunkEnd)), "it works at no time"));
  CHECK(says(validate_scorer("knorm", at(Moment::kChunkEnd, true)), "window_closed: false"));
  ScorerSpec spec;
  spec.probe_rows = 16;
  CHECK_FALSE(validate_scorer("judge_q", spec).has_value());
  CHECK(make_scorer("judge_q", spec)->probe_rows() == 16);
  CHECK(captured_rows("judge_q", spec) == 16);
  CHECK(says(validate_scorer("snapkv", spec), "probe_rows is 16"));
  spec = {};
  spec.query_rows = 32;
  CHECK_FALSE(validate_scorer("snapkv", spec).has_value());
  CHECK(captured_rows("snapkv", spec) == 32);
  CHECK(says(validate_scorer("knorm", spec), "query_rows is 32"));
  spec.query_rows = 70'000;
  CHECK(says(validate_scorer("snapkv", spec), "70000"));
  spec = {};
  spec.repeat_tokens = 0;
  CHECK(says(validate_scorer("kvzip", spec), "repeat_tokens"));
}

TEST_CASE("scorers: a configuration is refused for its scorer's numbers too") {
  CoreConfig config;
  config.pages_gpu = 100;
  config.policies.scorer = "judge_q";
  config.policies.identity = "session";
  CHECK_FALSE(validate_core_config(config).has_value());
  config.policies.scorer_spec.moment = Moment::kDecodeStep;
  CHECK(says(validate_core_config(config), "scorer judge_q cannot work at decode steps"));
  config.policies.scorer_spec = {};
  config.policies.identity = "shared";
  CHECK(says(validate_core_config(config), "leak one session's view"));
  config.policies.scorer = "knorm";
  CHECK_FALSE(validate_core_config(config).has_value());
  config.policies.scorer_spec.moment = Moment::kPromptEnd;
  CHECK(says(validate_core_config(config), "leak one session's view"));
}

TEST_CASE("scorers: KVzip repeats each piece behind an instruction and the end of the piece before") {
  ScorerSpec spec;
  spec.repeat_tokens = 100;
  spec.repeat_tail = 8;
  spec.repeat_instruction = 10;
  CHECK(repeated_rows("kvzip", spec, 0) == 0);
  CHECK(repeated_rows("kvzip", spec, 1) == 11);
  CHECK(repeated_rows("kvzip", spec, 100) == 110);
  CHECK(repeated_rows("kvzip", spec, 101) == 101 + 20 + 8);
  CHECK(repeated_rows("kvzip", spec, 350) == 350 + 40 + 24);
  CHECK(repeated_rows("snapkv", spec, 350) == 0);
}
