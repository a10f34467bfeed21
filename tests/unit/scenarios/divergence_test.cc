#include "scenarios/validate/divergence.h"

#include <doctest/doctest.h>

#include <string>

#include "engine/recorder/recorder_replay.h"
#include "models/files/textproto.h"
#include "tests/support/source_dir.h"

namespace kvtwin {
namespace {

Log recorded() {
  const std::string path = testing::source_dir() + "/tests/golden/h200/oversubscribed_2x/1/log.binpb";
  const auto bytes = read_text_file(path, size_t{1} << 26);
  REQUIRE(bytes);
  auto log = read_log(path, *bytes);
  REQUIRE(log);
  return std::move(*log);
}

LaunchHistory history_of(const Log& log) {
  LaunchHistory out(log.options.engines.size());
  REQUIRE(replay("a log", log, {&out}));
  return out;
}

}  // namespace

TEST_CASE("divergence: a run does not diverge from itself") {
  const Log log = recorded();
  CHECK(first_divergence(history_of(log), "one", history_of(log), "other").empty());
}

TEST_CASE("divergence: a planted change is found at its first effect, with the state of both sides") {
  const Log log = recorded();
  Log changed = log;
  changed.options.engines.front().step_tokens_max = 700;  // chunks of prompts end earlier
  const LaunchHistory real = history_of(log);
  const std::string said = first_divergence(real, "real", history_of(changed), "changed");
  // The first step that computes more than that.
  uint64_t first = UINT64_MAX;
  for (const LaunchHistory::Launch& launch : real.of(0)) {
    uint32_t tokens = 0;
    for (const PlanEntry& entry : launch.entries) tokens += entry.tokens;
    if (tokens > 700) first = std::min(first, launch.step);
  }
  REQUIRE(first != UINT64_MAX);
  CHECK_MESSAGE(said.starts_with("engine 0, step " + std::to_string(first) + " of "), said);
  for (const char* word :
       {"real: planned at", "changed: planned at", "requests ran", "waited", "pages", "free"})
    CHECK_MESSAGE(said.find(word) != std::string::npos, said);
}

TEST_CASE("divergence: a run that ends earlier diverges at its last step") {
  const Log log = recorded();
  LaunchHistory shorter(1);
  const LaunchHistory whole = history_of(log);
  const size_t half = whole.of(0).size() / 2;
  for (size_t i = 0; i < half; ++i) {
    const LaunchHistory::Launch& launch = whole.of(0)[i];
    shorter.saw_command(launch.at, LaunchStep{.step = StepId{launch.step},
                                              .repeat = i + 1 < half ? launch.repeat : 1,
                                              .entries = launch.entries,
                                              .allocations = {},
                                              .prefix_hits = {}});
  }
  const std::string said = first_divergence(whole, "whole", shorter, "shorter");
  CHECK_MESSAGE(said.find("shorter: has no such step") != std::string::npos, said);
}

}  // namespace kvtwin
