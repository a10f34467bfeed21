// The recorded corpora. What the importer makes of small logs: traces/import_cases/claude_code.txt.

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "tests/unit/traces/support.h"

namespace kvtwin {
namespace {

using testing::imported;
using testing::KeepAll;

v1::Prov output_prov(const v1::Node& node) {
  for (const v1::ProvOverride& entry : node.prov()) {
    if (entry.field() == v1::LlmRequest::kOutputTokensFieldNumber) return entry.prov();
  }
  return v1::RECORDED;
}

struct Corpus {
  uint64_t sessions = 0, requests = 0, tools = 0, opaque = 0, spawned = 0, sub_requests = 0, early = 0,
           estimated = 0;
  std::vector<double> step_errors_s;
  std::vector<uint32_t> prompts, outputs;
};

// Release times by the rules of docs/design/trace-formats.md#replay with recorded service times, compared
// with the recorded issue times.
void one_step_errors(const v1::Session& session, std::vector<double>* errors) {
  for (const v1::Node& node : session.nodes()) {
    if (!node.has_llm() || node.deps().empty()) continue;
    int64_t release = 0;
    for (const v1::Dep& dep : node.deps()) {
      const v1::Node& on = session.nodes(static_cast<int>(dep.node()));
      int64_t end = 0;
      if (on.has_llm()) end = on.llm().recorded_at_ns() + on.llm().recorded_service_ns();
      if (on.has_tool()) end = on.tool().recorded_at_ns() + on.tool().duration_ns();
      if (on.has_opaque()) end = on.opaque().recorded_at_ns() + on.opaque().duration_ns();
      if (dep.at_output_token() > 0) return;  // the log lacks the times of output tokens
      release = std::max(release, end + dep.delay_ns());
    }
    errors->push_back(static_cast<double>(release + node.llm().think_ns() - node.llm().recorded_at_ns()) /
                      1e9);
  }
}

void add(const v1::Session& session, Corpus* corpus) {
  corpus->sessions += 1;
  for (const v1::Node& node : session.nodes()) {
    corpus->requests += node.has_llm();
    corpus->tools += node.has_tool();
    corpus->opaque += node.has_opaque();
    corpus->sub_requests += node.has_llm() && node.agent() > 0;
    for (const v1::Dep& dep : node.deps()) {
      corpus->spawned += dep.kind() == v1::DEP_SPAWN;
      corpus->early += node.has_tool() && dep.at_output_token() > 0;
    }
    if (!node.has_llm()) continue;
    corpus->estimated += output_prov(node) == v1::ESTIMATED;
    corpus->prompts.push_back(node.llm().prompt_tokens());
    corpus->outputs.push_back(node.llm().output_tokens());
  }
  one_step_errors(session, &corpus->step_errors_s);
}

template <typename T>
T at_fraction(std::vector<T> values, size_t per_mille) {
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) * per_mille / 1'000];
}

TEST_CASE(
    "AgentCgroup: every session, request and tool of the three corpora "
    "(docs/design/trace-formats.md#schema)") {
  KVT_NEED_DATA(path, "agentcgroup/raw_traces.tar.xz");
#ifdef __SANITIZE_ADDRESS__
  MESSAGE("skipped: 90 MB of JSON take five minutes under a sanitizer");
  return;
#endif
  std::vector<std::string> notes;
  ImportOptions options;
  options.notes = &notes;
  const KeepAll sink = imported("claude-code", path, options);
  std::map<std::string, Corpus> corpora;
  for (const v1::Session& session : sink.sessions) {
    const std::string& model = sink.head.models(static_cast<int>(session.agents(0).model()));
    const bool local = model.find("GLM") != std::string::npos;
    const bool batch = model.find("haiku-4-5") != std::string::npos;
    add(session, &corpora[local ? "GLM" : batch ? "batch" : "haiku"]);
  }
  for (const std::string& sentence : notes) MESSAGE(sentence);
  for (const auto& [name, c] : corpora) {
    MESSAGE(name << ": " << c.sessions << " sessions, " << c.requests << " requests (" << c.sub_requests
                 << " of sub-agents), " << c.tools << " tools, " << c.opaque << " opaque, " << c.early
                 << " early, " << c.estimated << " outputs estimated, prompt p50 "
                 << at_fraction(c.prompts, 500) << ", output p50 " << at_fraction(c.outputs, 500)
                 << ", one-step error p1 " << at_fraction(c.step_errors_s, 10) << " s p99 "
                 << at_fraction(c.step_errors_s, 990) << " s");
    CHECK(at_fraction(c.step_errors_s, 10) >= -0.02);
    CHECK(at_fraction(c.step_errors_s, 990) <= 0.02);
  }
  const Corpus &haiku = corpora["haiku"], &glm = corpora["GLM"], &batch = corpora["batch"];
  CHECK(haiku.sessions == 55);
  CHECK(haiku.requests == 1'065);
  CHECK(haiku.tools + haiku.opaque == 1'151);
  CHECK(haiku.spawned == 15);
  CHECK(haiku.sub_requests == 268);
  CHECK(haiku.opaque ==
        0);  // 15 of the 17 Task requests have logs; the other two had malformed arguments and failed
  CHECK(haiku.early == 153);
  CHECK(at_fraction(haiku.prompts, 500) == doctest::Approx(29'243).epsilon(0.01));
  CHECK(glm.sessions == 111);
  CHECK(glm.requests == 5'643);
  CHECK(glm.tools + glm.opaque == 6'473);
  CHECK(at_fraction(glm.prompts, 500) == doctest::Approx(42'136).epsilon(0.01));
  CHECK(at_fraction(glm.outputs, 500) == doctest::Approx(144).epsilon(0.02));
  CHECK(static_cast<double>(glm.estimated) < 0.02 * static_cast<double>(glm.requests));
  CHECK(batch.sessions == 23);
  CHECK(batch.requests == 1'296);
  CHECK(batch.tools + batch.opaque == 1'287);
  CHECK(batch.opaque == 24);
  CHECK(at_fraction(batch.prompts, 500) == doctest::Approx(43'563).epsilon(0.01));
}

}  // namespace
}  // namespace kvtwin
