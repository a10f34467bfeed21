// The shipped trace, traces/data/coding_agents_small.kvtrace. KVTWIN_UPDATE_GOLDEN=1 rewrites it.

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/support/source_dir.h"
#include "tests/unit/traces/support.h"
#include "traces/format/reader.h"
#include "traces/format/writer.h"
#include "traces/synth/synthesize.h"

namespace kvtwin {
namespace {

const std::string kSample = testing::source_dir() + "/traces/data/coding_agents_small.kvtrace";

const SynthOptions kRecipe = {"coding-agent-like",
                              24,
                              1,
                              {{"requests_max", "28"},
                               {"window_tokens", "65536"},
                               {"share_groups", "2"},
                               {"subagents_per_mille", "25"},
                               {"rate_per_hour", "240"}}};

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_sample(const std::string& path) {
  TraceWriter writer(path);
  REQUIRE(testing::problem(synthesize(kRecipe, &writer)) == "");
}

TEST_CASE("the shipped sample equals the output of its recipe, to the byte, on every machine") {
  if (std::getenv("KVTWIN_UPDATE_GOLDEN") != nullptr) write_sample(kSample);
  const std::string again = (std::filesystem::temp_directory_path() / "kvtwin_sample_again.kvtrace").string();
  write_sample(again);
  const bool equal = bytes_of(again) == bytes_of(kSample);
  std::filesystem::remove(again);
  CHECK(equal);
}

TEST_CASE("the shipped sample is small, and has tools, sub-agents, early starts and rewrites") {
  testing::KeepAll sample;
  REQUIRE(testing::problem(read_trace(kSample, &sample)) == "");
  CHECK(bytes_of(kSample).size() < 400'000);
  CHECK(sample.sessions.size() == 24);
  CHECK(sample.counts.llm_requests() >= 550);
  CHECK(sample.counts.llm_requests() <= 750);
  size_t agents = 0, early = 0;
  for (const v1::Session& session : sample.sessions) {
    agents += static_cast<size_t>(session.agents_size()) - 1;
    for (const v1::Node& node : session.nodes()) {
      for (const v1::Dep& dep : node.deps()) early += dep.at_output_token() > 0;
    }
  }
  MESSAGE("sample: " << sample.counts.llm_requests() << " requests, " << sample.counts.tool_calls()
                     << " tools, " << agents << " sub-agents, " << early << " early starts, "
                     << sample.counts.prompt_tokens() << " prompt and " << sample.counts.output_tokens()
                     << " output tokens, " << bytes_of(kSample).size() << " bytes");
  CHECK(agents >= 8);
  CHECK(early >= 8);
  CHECK(sample.counts.tool_calls() > 300);
  CHECK(sample.tables.size() == 2);
  CHECK(sample.head.recipes(0).name() == kRecipe.recipe);
  CHECK(sample.head.recipes(0).seed() == kRecipe.seed);
}

}  // namespace
}  // namespace kvtwin
