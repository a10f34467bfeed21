#include "scenarios/load/scenario.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <string>
#include <vector>

#include "tests/support/source_dir.h"

namespace kvtwin {
namespace {

const std::string kPath = testing::source_dir() + "/scenarios/test.textproto";

// Names this file as the trace, because it exists.
const std::string kGood =
    "model { name: \"llama-3.1-8b\" }\n"
    "hardware { node: \"h200\" }\n"
    "trace { path: \"../tests/unit/scenarios/scenario_test.cc\" format: \"azure\" }\n";

Errors errors_of(const std::string& text, const std::vector<std::string>& sets = {}) {
  const auto loaded = parse_scenario(text, kPath, sets);
  return loaded ? Errors{} : loaded.error();
}

}  // namespace

TEST_CASE("scenario: an absent field has its default, and the name is the file's") {
  const auto scenario = parse_scenario(kGood, kPath, {});
  REQUIRE(scenario);
  CHECK(scenario->values.name() == "test");
  CHECK(scenario->values.seed() == 42);
  CHECK(scenario->values.memory().page_tokens() == 16);
  CHECK(scenario->values.limits().steps_in_flight_max() == 1);
  CHECK(scenario->values.policies().placement() == "gpu");
}

TEST_CASE("scenario: a preset overrides the defaults, and written fields override it") {
  const auto scenario =
      parse_scenario(kGood + "limits { preset: \"vllm_v1\" requests_max: 128 }\n", kPath, {});
  REQUIRE(scenario);
  CHECK(scenario->values.limits().steps_in_flight_max() == 2);
  CHECK(scenario->values.limits().admission() == "full_prompt");
  CHECK(scenario->values.limits().requests_max() == 128);
  CHECK(scenario->values.limits().capture_sizes_size() == 51);
  const auto own =
      parse_scenario(kGood + "limits { preset: \"vllm_v1\" capture_sizes: [4, 8] }\n", kPath, {});
  REQUIRE(own);
  CHECK(own->values.limits().capture_sizes_size() == 2);
}

TEST_CASE("scenario: a preset's host times hold for simulated runs, and not beside a profile that has them") {
  const std::string vllm = kGood + "limits { preset: \"vllm_v1\" }\n";
  const auto cost_of = [&](const std::vector<std::string>& sets) {
    const auto scenario = parse_scenario(vllm, kPath, sets);
    REQUIRE(scenario);
    return scenario->values.cost();
  };
  CHECK(cost_of({}).host_ns_per_step() == 200'000);
  CHECK(cost_of({}).front_end_request_ns() == 3'000'000);
  CHECK(cost_of({}).front_end_token_ns() == 2'000);
  CHECK(cost_of({"cost.profile=" + testing::source_dir() + "/README.md"}).host_ns_per_step() == 0);
  CHECK(cost_of({"cost.profile=" + testing::source_dir() + "/README.md", "cost.host_ns_per_step=7"})
            .host_ns_per_step() == 7);
  CHECK(cost_of({"backend=cpu"}).front_end_request_ns() == 0);
  CHECK(cost_of({"backend=cpu", "cost.front_end_request_ns=5"}).front_end_request_ns() == 5);
  const auto plain = parse_scenario(kGood, kPath, {});
  REQUIRE(plain);
  CHECK(plain->values.cost().front_end_request_ns() == 0);
}

TEST_CASE("scenario: --set reaches every kind of field and obeys the same checks") {
  const auto scenario = parse_scenario(
      kGood, kPath,
      {"limits.requests_max=1,024", "replay.think_scale=0.5", "limits.prefix_cache=false",
       "policies.prefix_eviction=lfu", "limits.capture_sizes=1,2,4", "seed=7", "cost.host_eager_ns=-1"});
  REQUIRE(scenario);
  CHECK(scenario->values.limits().requests_max() == 1024);
  CHECK(scenario->values.replay().think_scale() == 0.5);
  CHECK(!scenario->values.limits().prefix_cache());
  CHECK(scenario->values.policies().prefix_eviction() == "lfu");
  CHECK(scenario->values.limits().capture_sizes_size() == 3);
  CHECK(scenario->values.seed() == 7);

  const std::vector<std::pair<std::string, std::string>> problem = {
      {"limits.requests_mx=3", "requests_max"},
      {"limits.requests_max=many", "whole number"},
      {"limits=3", "--set=group.field=value"},
      {"limits.requests_max", "has no value"},
      {"limits.requests_max=0", "from 1 to"},
      {"limits.prefix_cache=yes", "true or false"},
      {"seed.x=1", "whole number"},
      {"limits.capture_sizes=4,2", "must ascend"}};
  for (const auto& [set, expected] : problem) {
    const Errors found = errors_of(kGood, {set});
    CAPTURE(set);
    REQUIRE(found.size() == 1);
    CHECK(found[0].where == "--set=" + set);
    CHECK(found[0].text().find(expected) != std::string::npos);
  }
}

TEST_CASE("scenario: a list of numbers can be set, and each is checked") {
  const auto scenario = parse_scenario(kGood, kPath, {"policies.budget_options.mean=0.25,0.5"});
  REQUIRE(scenario);
  CHECK(scenario->values.policies().budget_options().mean_size() == 2);
  const Errors found = errors_of(kGood, {"policies.budget_options.deviation=0.5,-1"});
  REQUIRE(found.size() == 1);
  CHECK(found[0].text().find("from 0 to 4096") != std::string::npos);
}

TEST_CASE("scenario: the resolved text loads again to the same values") {
  const auto scenario =
      parse_scenario(kGood + "limits { preset: \"vllm_v1\" }\n", kPath, {"memory.host_bytes=1000000000"});
  REQUIRE(scenario);
  CHECK(scenario->values.policies().placement() == "host");
  const std::string text = resolved_textproto(*scenario);
  const auto again = parse_scenario(text, "/elsewhere/scenario.resolved.textproto", {});
  REQUIRE(again);
  CHECK(resolved_textproto(*again) == text);
}

TEST_CASE("scenario: $KVTWIN_DATA is replaced, other paths are relative to the scenario") {
  const auto scenario = parse_scenario(kGood, kPath, {});
  REQUIRE(scenario);
  CHECK(scenario->file("a/../b.txt") == testing::source_dir() + "/scenarios/b.txt");
  CHECK(scenario->file("/abs") == "/abs");
  const char* const before = getenv("KVTWIN_DATA");
  const std::string retained = before == nullptr ? "" : before;
  setenv("KVTWIN_DATA", "/somewhere", 1);
  CHECK(scenario->file("$KVTWIN_DATA/x") == "/somewhere/x");
  unsetenv("KVTWIN_DATA");
  CHECK(scenario->file("$KVTWIN_DATA/x").find("shared/data/x") != std::string::npos);
  if (before != nullptr) setenv("KVTWIN_DATA", retained.c_str(), 1);
}

}  // namespace kvtwin
