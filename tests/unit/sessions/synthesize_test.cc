#include "traces/synth/synthesize.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "tests/unit/traces/support.h"
#include "traces/format/block_key.h"

namespace kvtwin {
namespace {

testing::KeepAll made(const SynthOptions& options) {
  testing::KeepAll sink;
  const Result<void> result = synthesize(options, &sink);
  CAPTURE(options.recipe);
  REQUIRE(testing::problem(result) == "");
  return sink;
}

std::vector<const v1::LlmRequest*> requests_of(const testing::KeepAll& trace) {
  std::vector<const v1::LlmRequest*> requests;
  for (const v1::Session& session : trace.sessions) {
    for (const v1::Node& node : session.nodes()) {
      if (node.has_llm()) requests.push_back(&node.llm());
    }
  }
  return requests;
}

template <typename Get>
double mean(const std::vector<const v1::LlmRequest*>& requests, Get get) {
  double sum = 0;
  for (const v1::LlmRequest* request : requests) sum += static_cast<double>(get(*request));
  return sum / static_cast<double>(requests.size());
}

double prompt_mean(const testing::KeepAll& trace) {
  return mean(requests_of(trace), [](const v1::LlmRequest& request) { return request.prompt_tokens(); });
}
double output_mean(const testing::KeepAll& trace) {
  return mean(requests_of(trace), [](const v1::LlmRequest& request) { return request.output_tokens(); });
}

template <typename T>
T percentile(std::vector<T> values, size_t percent) {
  REQUIRE(!values.empty());
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) * percent / 100];
}

TEST_CASE("every recipe gives sessions that pass every check, with defaults and with unusual parameters") {
  CHECK(synth_recipes().size() == 7);
  for (const SynthRecipeInfo& recipe : synth_recipes()) {
    CAPTURE(recipe.name);
    CHECK(!recipe.description.empty());
    const testing::KeepAll plain = made({recipe.name, 20, 1, {}});
    CHECK(plain.sessions.size() == 20);
    CHECK(plain.ended);
    for (const char* key_block : {"0", "1", "64"}) {
      made(
          {recipe.name, 6, 2, {{"key_block", key_block}, {"share_groups", "3"}, {"window_tokens", "32768"}}});
      made({recipe.name, 3, 3, {{"key_block", key_block}, {"share_groups", "0"}}});
    }
  }
}

TEST_CASE("every parameter of every recipe is accepted at both of its ends") {
  for (const SynthRecipeInfo& recipe : synth_recipes()) {
    for (const SynthParam& param : recipe.params) {
      if (param.name == "share_groups") continue;  // 100,000 tables take a second and test nothing new
      for (const int64_t value : {param.low, param.high}) {
        CAPTURE(recipe.name);
        CAPTURE(param.name);
        CAPTURE(value);
        testing::PerSession sink([](const v1::TraceHeader&, const v1::Session&) {});
        const Result<void> result =
            synthesize({recipe.name, 2, 5, {{param.name, std::to_string(value)}}}, &sink);
        // Two ends may contradict each other; then the error names it.
        if (!result) CHECK(result.error().what.find("is above") != std::string::npos);
      }
    }
  }
}

TEST_CASE("the same seed gives the same bytes, another seed others") {
  for (const SynthRecipeInfo& recipe : synth_recipes()) {
    CAPTURE(recipe.name);
    const std::string bytes = made({recipe.name, 5, 9, {}}).bytes();
    CHECK(bytes == made({recipe.name, 5, 9, {}}).bytes());
    CHECK(bytes != made({recipe.name, 5, 10, {}}).bytes());
  }
}

TEST_CASE("a session does not depend on the number of sessions") {
  const testing::KeepAll few = made({"coding-agent-like", 2, 9, {}}),
                         more = made({"coding-agent-like", 4, 9, {}});
  CHECK(few.sessions[1].SerializeAsString() == more.sessions[1].SerializeAsString());
}

TEST_CASE("the header states how the trace was made") {
  const testing::KeepAll trace = made({"bcp-like", 3, 42, {{"snippets", "7"}}});
  REQUIRE(trace.head.recipes_size() == 1);
  CHECK(trace.head.recipes(0).name() == "bcp-like");
  CHECK(trace.head.recipes(0).seed() == 42);
  CHECK(trace.head.recipes(0).params_json().find("\"snippets\":7") != std::string::npos);
  CHECK(trace.head.recipes(0).params_json().find("\"sessions\":3") != std::string::npos);
  for (const v1::FieldPolicy& policy : trace.head.policies()) {
    CHECK(policy.prov() == v1::SYNTHESISED);
    CHECK(policy.recipe() == 1);
  }
  CHECK(trace.head.policies_size() >= 9);
}

TEST_CASE("sessions share their instructions in the requested number of groups, or not at all") {
  CHECK(made({"coding-agent-like", 5, 1, {{"share_groups", "0"}}}).tables.empty());
  const testing::KeepAll trace = made({"coding-agent-like", 40, 1, {{"share_groups", "3"}}});
  CHECK(trace.tables.size() == 3);
  std::set<uint32_t> used;
  std::set<int64_t> first_ids;
  for (const v1::Session& session : trace.sessions) {
    used.insert(session.nodes(0).llm().prompt(0).table());
    const Result<IdRuns> runs = decode_key(session.nodes(0).llm().prompt_key());
    REQUIRE(runs);
    CHECK(runs->front().scope == v1::SCOPE_DATASET);
    first_ids.insert(runs->front().first);
  }
  CHECK(used == std::set<uint32_t>{1, 2, 3});
  CHECK(first_ids.size() == 3);
}

TEST_CASE("arrivals are Poisson when a rate is given, and absent otherwise") {
  CHECK(made({"reasoning", 3, 1, {}}).head.session_arrivals() == v1::ARR_NONE);
  const testing::KeepAll trace = made({"reasoning", 2'000, 1, {{"rate_per_hour", "3600"}}});
  CHECK(trace.head.session_arrivals() == v1::ARR_OPEN_LOOP);
  int64_t before = 0;
  double squares = 0;
  for (const v1::Session& session : trace.sessions) {
    const auto gap = static_cast<double>(session.arrival_at_ns() - before);
    CHECK(gap >= 0);
    squares += gap * gap;
    before = session.arrival_at_ns();
  }
  const double gap_mean = static_cast<double>(before) / 2'000;
  CHECK(gap_mean == doctest::Approx(1e9).epsilon(0.06));
  CHECK(squares / 2'000 == doctest::Approx(2 * gap_mean * gap_mean).epsilon(0.15));  // exponential
}

TEST_CASE("bcp-like: a dozen look-ups, a marked question, and an append-only history") {
  const testing::KeepAll trace = made({"bcp-like", 400, 1, {{"window_tokens", "0"}}});
  const double look_ups = static_cast<double>(trace.counts.tool_calls()) / 400;
  CHECK(look_ups == doctest::Approx(12.6).epsilon(0.1));
  for (const v1::Session& session : trace.sessions) {
    uint32_t before = 0;
    for (const v1::Node& node : session.nodes()) {
      if (!node.has_llm()) continue;
      CHECK(node.llm().prompt_tokens() > before);
      before = node.llm().prompt_tokens();
    }
    CHECK(session.spans(0).query_span());
  }
}

TEST_CASE("osworld-like: near TriAxialKV's mean prefill of 11,000 and decode of 300") {
  const testing::KeepAll trace = made({"osworld-like", 300, 1, {}});
  MESSAGE("osworld-like: prompt mean " << prompt_mean(trace) << ", output mean " << output_mean(trace));
  CHECK(prompt_mean(trace) == doctest::Approx(11'000).epsilon(0.1));
  CHECK(output_mean(trace) == doctest::Approx(300).epsilon(0.1));
  for (const v1::Session& session : trace.sessions) {
    for (const v1::Node& node : session.nodes()) {
      if (!node.has_llm()) continue;
      int images = 0;
      for (const v1::SpanRun& run : node.llm().prompt()) {
        for (uint32_t i = 0; run.table() == 0 && i < run.count(); ++i) {
          images += session.spans(static_cast<int>(run.first() + i)).modality() == v1::IMAGE;
        }
      }
      CHECK(images >= 1);
      CHECK(images <= 3);
    }
  }
}

TEST_CASE("scbench-like: turn 0 reads the context for one token; k sessions share a context") {
  const testing::KeepAll trace =
      made({"scbench-like", 12, 1, {{"sessions_per_context", "4"}, {"class", "0"}}});
  CHECK(trace.tables.size() == 1 + 3);
  for (size_t i = 0; i < trace.sessions.size(); ++i) {
    const v1::Session& session = trace.sessions[i];
    CHECK(session.nodes(0).llm().output_tokens() == 1);
    CHECK(session.nodes(0).llm().prompt_tokens() < 20'200);
    CHECK(session.nodes(0).llm().prompt(1).table() == 2 + i / 4);
    CHECK(session.nodes_size() >= 3);
    CHECK(session.nodes_size() <= 6);
  }
}

TEST_CASE("bfcl-memory-like: dialogues write the memory that the questions of the same tenant read") {
  const testing::KeepAll trace = made({"bfcl-memory-like", 82, 1, {}});
  CHECK(trace.sessions[0].nodes(0).llm().prompt_tokens() < 2'218 + 240);
  CHECK(trace.sessions[0].tenant() == "scenario-00000");
  CHECK(trace.sessions[41].tenant() == "scenario-00001");
  const auto dump_table = [&](size_t i) { return trace.sessions[i].nodes(0).llm().prompt(1).table(); };
  CHECK(dump_table(10) == dump_table(40));
  CHECK(dump_table(10) != dump_table(51));
  CHECK(trace.tables[1].spans(0).tokens() == 1'500);
}

TEST_CASE("reasoning: six outputs in ten reach the limit, as in the recordings") {
  const testing::KeepAll trace = made({"reasoning", 1'000, 1, {}});
  size_t cut = 0;
  for (const v1::LlmRequest* request : requests_of(trace)) cut += request->stop_reason() == "length";
  CHECK(static_cast<double>(cut) == doctest::Approx(630).epsilon(0.06));
  CHECK(output_mean(trace) == doctest::Approx(12'610).epsilon(0.03));  // 353,085 tokens in 28 outputs
}

TEST_CASE("coding-agent-like: has the percentiles of the recordings (docs/design/trace-formats.md#weka)") {
  const testing::KeepAll trace = made({"coding-agent-like", 600, 1, {}});
  std::vector<uint32_t> firsts, outputs, new_tokens;
  std::vector<int64_t> counts, tool_gaps;
  uint64_t steps = 0, resets = 0;
  for (const v1::Session& session : trace.sessions) {
    firsts.push_back(session.nodes(0).llm().prompt_tokens());
    IdRuns before;
    uint32_t before_tokens = 0;
    int64_t count = 0, longest_tool = 0;
    for (const v1::Node& node : session.nodes()) {
      if (node.agent() != 0) continue;
      if (node.has_tool()) longest_tool = std::max(longest_tool, node.tool().duration_ns());
      if (!node.has_llm()) continue;
      const v1::LlmRequest& request = node.llm();
      const Result<IdRuns> runs = decode_key(request.prompt_key());
      REQUIRE(runs);
      if (count++ > 0) {
        const uint64_t common = common_blocks(before, *runs);
        ++steps;
        resets += common < blocks_in(before) ? 1 : 0;
        new_tokens.push_back(request.prompt_tokens() - static_cast<uint32_t>(common * 64));
        if (longest_tool > 0) tool_gaps.push_back((longest_tool + request.think_ns()) / 1'000'000);
      }
      outputs.push_back(request.output_tokens());
      before = *runs;
      before_tokens = request.prompt_tokens();
      longest_tool = 0;
    }
    CHECK(before_tokens > 0);
    counts.push_back(count);
  }
  MESSAGE("coding-agent-like, 600 sessions: first prompt p50 "
          << percentile(firsts, 50) << " p90 " << percentile(firsts, 90) << ", requests p50 "
          << percentile(counts, 50) << ", output p50 " << percentile(outputs, 50) << " p90 "
          << percentile(outputs, 90) << ", uncached p50 " << percentile(new_tokens, 50) << " p90 "
          << percentile(new_tokens, 90) << " p99 " << percentile(new_tokens, 99) << ", tool gap p50 "
          << percentile(tool_gaps, 50) << " ms p90 " << percentile(tool_gaps, 90) << ", rewrites "
          << 1'000 * resets / steps << " per mille, prompt mean " << prompt_mean(trace) << ", output mean "
          << output_mean(trace));
  // The median of the first prompts lies in a gap of their distribution, so the fraction is the more stable
  // figure.
  const auto small = static_cast<double>(
      std::count_if(firsts.begin(), firsts.end(), [](uint32_t n) { return n <= 24'282; }));
  CHECK(small / static_cast<double>(firsts.size()) == doctest::Approx(0.5).epsilon(0.1));
  CHECK(percentile(firsts, 90) == doctest::Approx(260'297).epsilon(0.2));
  CHECK(percentile(counts, 50) == doctest::Approx(44).epsilon(0.2));
  CHECK(percentile(outputs, 50) == doctest::Approx(218).epsilon(0.05));
  CHECK(percentile(outputs, 90) == doctest::Approx(893).epsilon(0.05));
  CHECK(percentile(new_tokens, 50) == doctest::Approx(713).epsilon(0.15));
  CHECK(percentile(new_tokens, 90) == doctest::Approx(4'213).epsilon(0.15));
  CHECK(percentile(tool_gaps, 50) == doctest::Approx(9'000).epsilon(0.05));
  CHECK(percentile(tool_gaps, 90) == doctest::Approx(74'000).epsilon(0.1));
  CHECK(1'000.0 * static_cast<double>(resets) / static_cast<double>(steps) ==
        doctest::Approx(27).epsilon(0.15));
  CHECK(prompt_mean(trace) == doctest::Approx(118'296).epsilon(0.1));
}

TEST_CASE("coding-agent-like: sub-agents spawn, some of them before their message ends, and join") {
  const testing::KeepAll trace = made({"coding-agent-like", 30, 4, {{"subagents_per_mille", "100"}}});
  size_t agents = 0, spawns = 0, early = 0, joins = 0;
  for (const v1::Session& session : trace.sessions) {
    agents += static_cast<size_t>(session.agents_size()) - 1;
    for (const v1::Node& node : session.nodes()) {
      for (const v1::Dep& dep : node.deps()) {
        spawns += dep.kind() == v1::DEP_SPAWN;
        early += dep.kind() == v1::DEP_SPAWN && dep.at_output_token() > 0;
        joins += dep.kind() == v1::DEP_JOIN;
        if (dep.kind() == v1::DEP_SPAWN) CHECK(session.nodes(static_cast<int>(dep.node())).agent() == 0);
        if (dep.kind() == v1::DEP_JOIN) CHECK(node.agent() == 0);
      }
    }
  }
  CHECK(agents > 50);
  CHECK(spawns == agents);
  CHECK(joins == agents);
  CHECK(early > agents / 4);
  CHECK(early < agents);
}

TEST_CASE("coding-agent-like: the window is never exceeded; the context is compacted instead") {
  const testing::KeepAll trace =
      made({"coding-agent-like", 60, 4, {{"window_tokens", "40000"}, {"subagents_per_mille", "30"}}});
  for (const v1::LlmRequest* request : requests_of(trace))
    CHECK(request->prompt_tokens() + request->output_tokens() <= 40'000);
}

}  // namespace
}  // namespace kvtwin
