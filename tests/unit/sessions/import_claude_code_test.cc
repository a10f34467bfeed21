#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "tests/unit/traces/hostile.h"

namespace kvtwin {
namespace {

using testing::Folder;
using testing::imported;
using testing::KeepAll;

// One record; `rest` is the message and other fields.
std::string line(const std::string& type, int second, const std::string& uuid, const std::string& parent,
                 const std::string& rest, bool sidechain = false) {
  return fmt::format(
             R"({{"type":"{}","timestamp":"2026-02-07T10:00:{:02}.500Z","uuid":"{}","parentUuid":{},"isSidechain":{},"sessionId":"s1",{}}})",
             type, second, uuid, parent.empty() ? "null" : "\"" + parent + "\"", sidechain, rest) +
         "\n";
}
std::string said(const std::string& text) {
  return fmt::format(R"("message":{{"role":"user","content":"{}"}})", text);
}
std::string answer(const std::string& id, const std::string& content, int input, int cached, int output) {
  return fmt::format(
      R"("message":{{"id":"{}","model":"claude-x","role":"assistant","content":[{}],"usage":{{"input_tokens":{},"cache_read_input_tokens":{},"cache_creation_input_tokens":7,"output_tokens":{}}}}})",
      id, content, input, cached, output);
}
std::string text(size_t chars) {
  return fmt::format(R"({{"type":"text","text":"{}"}})", std::string(chars, 'a'));
}
std::string thinking(size_t chars) {
  return fmt::format(R"({{"type":"thinking","thinking":"{}"}})", std::string(chars, 't'));
}
std::string use(const std::string& id, const std::string& tool, const std::string& input) {
  return fmt::format(R"({{"type":"tool_use","id":"{}","name":"{}","input":{}}})", id, tool, input);
}
std::string result(const std::string& id, size_t chars) {
  return fmt::format(
      R"("message":{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"{}","content":"{}"}}]}})",
      id, std::string(chars, 'r'));
}

v1::Session claude_session(const std::string& bytes, std::vector<std::string>* notes = nullptr) {
  const Folder folder;
  ImportOptions options;
  options.notes = notes;
  const KeepAll sink = imported("claude-code", folder.write("log.jsonl", bytes), options);
  REQUIRE(sink.sessions.size() == 1);
  return sink.sessions[0];
}

v1::Prov output_prov(const v1::Node& node) {
  for (const v1::ProvOverride& entry : node.prov()) {
    if (entry.field() == v1::LlmRequest::kOutputTokensFieldNumber) return entry.prov();
  }
  return v1::RECORDED;
}

const std::string kTwoRequests =
    line("user", 1, "u1", "", said("please fix it")) +
    line("assistant", 3, "a1", "u1", answer("m1", text(390), 3, 1'000, 2)) +
    line("assistant", 5, "a2", "a1", answer("m1", use("t1", "Bash", R"({"command":"ls"})"), 3, 1'000, 2)) +
    line("user", 8, "u2", "a2", result("t1", 39)) +
    line("assistant", 12, "a3", "u2", answer("m2", text(39), 5, 1'500, 1));

TEST_CASE("trap 8: output tokens are estimated from the text if the log has only the stream's first usage") {
  std::vector<std::string> notes;
  const v1::Session session = claude_session(kTwoRequests, &notes);
  const v1::Node& first = session.nodes(0);
  // 390 characters of text are 100 tokens; Bash{"command":"ls"} has 20 characters: 6 tokens.
  CHECK(first.llm().output_tokens() == 106);
  CHECK(output_prov(first) == v1::ESTIMATED);
  REQUIRE(!notes.empty());
  CHECK(notes[0].starts_with("2 requests have output tokens estimated"));
}

TEST_CASE("trap 8: the records of one message are one request, and its usage counts once") {
  const v1::Session session = claude_session(kTwoRequests);
  REQUIRE(session.nodes_size() == 3);  // request, tool, request
  CHECK(session.nodes(0).llm().prompt_tokens() == 3 + 1'000 + 7);
  CHECK(session.nodes(2).llm().prompt_tokens() == 5 + 1'500 + 7);
  CHECK(session.nodes(2).llm().recorded_cache_read_tokens() == 1'500);
}

TEST_CASE("an output size that fits its text is taken as recorded") {
  const std::string log = line("user", 1, "u1", "", said("please")) +
                          line("assistant", 3, "a1", "u1", answer("m1", text(390), 3, 1'000, 97));
  const v1::Session session = claude_session(log);
  CHECK(session.nodes(0).llm().output_tokens() == 97);
  CHECK(output_prov(session.nodes(0)) == v1::RECORDED);
}

TEST_CASE("times: a request starts at the previous record, a tool runs from its emission to its result") {
  const v1::Session session = claude_session(kTwoRequests);
  const int64_t second = 1'000'000'000;
  CHECK(session.arrival_at_ns() == 0);
  CHECK(session.nodes(0).llm().recorded_at_ns() == 0);
  CHECK(session.nodes(0).llm().recorded_service_ns() == 4 * second);
  CHECK(session.nodes(1).tool().duration_ns() == 3 * second);
  CHECK(session.nodes(2).llm().recorded_at_ns() == 7 * second);
  CHECK(session.nodes(2).llm().think_ns() == 0);
}

TEST_CASE("a tool emitted before the end of its message starts at its output token") {
  const std::string log =
      line("user", 1, "u1", "", said("please")) +
      line("assistant", 3, "a1", "u1", answer("m1", use("t1", "Read", R"({"p":"x"})"), 3, 1'000, 30)) +
      line("assistant", 5, "a2", "a1", answer("m1", use("t2", "Bash", R"({"p":"y"})"), 3, 1'000, 30)) +
      line("user", 6, "u2", "a2", result("t1", 39)) + line("user", 7, "u3", "u2", result("t2", 39)) +
      line("assistant", 9, "a3", "u3", answer("m2", text(39), 5, 1'500, 12));
  const v1::Session session = claude_session(log);
  CHECK(session.nodes(1).deps(0).at_output_token() == 15);
  CHECK(session.nodes(1).tool().duration_ns() == 3'000'000'000);
  CHECK(session.nodes(2).deps(0).at_output_token() == 0);
  CHECK(session.nodes(2).tool().duration_ns() == 2'000'000'000);
  CHECK(session.nodes(3).deps_size() == 3);
}

TEST_CASE(
    "spans: instructions are the unexplained part of the first prompt, and later growth is distributed") {
  const v1::Session session = claude_session(kTwoRequests);
  CHECK(session.spans(0).role() == v1::INST);
  CHECK(session.spans(0).tokens() == 1'010 - 4);  // "please fix it": 13 characters
  CHECK(session.spans(0).prov(0).prov() == v1::DERIVED);
  CHECK(session.spans(1).role() == v1::USER);
  CHECK(session.spans(1).query_span());
  const v1::Span& obs = session.spans(static_cast<int>(session.nodes(1).tool().result_span()) - 1);
  CHECK(obs.role() == v1::OBS);
  CHECK(obs.tokens() == 1'512 - 1'010 - 106);
  CHECK(obs.tool() == session.nodes(1).tool().tool());
}

TEST_CASE("reasoning leaves the history if the log's prompts show it, and stays otherwise") {
  for (const bool stripped : {true, false}) {
    CAPTURE(stripped);
    // 100 of 120 output tokens are reasoning; the result has 10.
    const int second = 1'000 + (stripped ? 20 : 120) + 10;
    const std::string log =
        line("user", 1, "u1", "", said("please")) +
        line("assistant", 3, "a1", "u1", answer("m1", thinking(390) + "," + text(78), 3, 990, 120)) +
        line("user", 6, "u2", "a1", said(std::string(39, 'u'))) +
        line("assistant", 9, "a3", "u2", answer("m2", text(39), 3, second - 10, 12));
    const v1::Session session = claude_session(log);
    bool listed = false;
    for (const v1::SpanRun& run : session.nodes(1).llm().prompt()) {
      for (uint32_t i = run.first(); i < run.first() + run.count(); ++i) {
        listed = listed || session.spans(static_cast<int>(i)).role() == v1::REASONING;
      }
    }
    CHECK(listed == !stripped);
    CHECK(session.nodes(1).llm().think_ns() == 3'000'000'000);  // a person typed
    CHECK(session.nodes(1).llm().turn() == 1);
  }
}

TEST_CASE("a sub-agent with a log spawns and joins, and its tool keeps only the remaining time") {
  const std::string task = use("t1", "Task", R"({"subagent_type":"Explore","prompt":"look around"})");
  const std::string log =
      line("user", 1, "u1", "", said("please")) +
      line("assistant", 3, "a1", "u1", answer("m1", task, 3, 1'000, 40)) +
      line("user", 4, "x1", "", said("look around"), true) +
      line("assistant", 6, "x2", "x1", answer("n1", use("t2", "Grep", R"({"q":"z"})"), 3, 800, 15), true) +
      line("user", 7, "x3", "x2", result("t2", 390), true) +
      line("assistant", 9, "x4", "x3", answer("n2", text(390), 3, 1'000, 100), true) +
      line("user", 11, "u2", "a1", result("t1", 390)) +
      line("assistant", 15, "a3", "u2", answer("m2", text(39), 5, 1'500, 12));
  const v1::Session session = claude_session(log);
  REQUIRE(session.agents_size() == 2);
  CHECK(session.agents(1).kind() == "Explore");
  REQUIRE(session.nodes_size() == 6);  // request; spawned request, its tool, its request; Task; request
  CHECK(session.nodes(1).agent() == 1);
  CHECK(session.nodes(1).deps(0).kind() == v1::DEP_SPAWN);
  CHECK(session.nodes(1).deps(0).delay_ns() == 1'000'000'000);
  const v1::Node& node = session.nodes(4);
  CHECK(node.tool().duration_ns() == 2'000'000'000);  // 9.5 s to 11.5 s
  CHECK(node.deps(1).node() == 3);
  CHECK(node.deps(1).kind() == v1::DEP_JOIN);
  CHECK(session.nodes(5).deps(1).node() == 4);
}

TEST_CASE("a sub-agent without a log is opaque") {
  const std::string log =
      line("user", 1, "u1", "", said("please")) +
      line("assistant", 3, "a1", "u1",
           answer("m1", use("t1", "Task", R"({"subagent_type":"Plan","prompt":"p"})"), 3, 1'000, 40)) +
      line("user", 11, "u2", "a1",
           result("t1", 390) + R"(,"toolUseResult":{"totalTokens":39427,"totalToolUseCount":27})") +
      line("assistant", 15, "a3", "u2", answer("m2", text(39), 5, 1'500, 12));
  const v1::Session session = claude_session(log);
  CHECK(session.nodes(1).opaque().kind() == "Plan");
  CHECK(session.nodes(1).opaque().duration_ns() == 8'000'000'000);
  CHECK(session.nodes(1).opaque().total_tokens() == 39'427);
  CHECK(session.nodes(1).opaque().tool_uses() == 27);
  CHECK(session.spans(static_cast<int>(session.nodes(1).opaque().result_span()) - 1).role() == v1::OBS);
}

TEST_CASE("a compaction starts a new prompt after the instructions; a \"summary\" record is only a title") {
  std::vector<std::string> notes;
  const std::string log =
      R"({"type":"summary","summary":"Old talk","leafUuid":"zz"})"
      "\n" +
      kTwoRequests + line("user", 20, "u5", "", R"("isCompactSummary":true,)" + said(std::string(390, 's'))) +
      line("assistant", 25, "a5", "u5", answer("m3", text(39), 6, 1'200, 10));
  const v1::Session session = claude_session(log, &notes);
  const v1::LlmRequest& last = session.nodes(session.nodes_size() - 1).llm();
  CHECK(last.prompt_tokens() == 1'213);
  REQUIRE(last.prompt_size() == 2);
  CHECK(last.prompt(0).first() == 0);
  CHECK(last.prompt(0).count() == 1);
  CHECK(session.spans(static_cast<int>(last.prompt(1).first())).tokens() == 1'213 - 1'006);
  CHECK(notes.back().starts_with("1 \"summary\" records"));
}

TEST_CASE("a prompt that shrank without a logged reason keeps the recorded size") {
  const std::string log = kTwoRequests + line("user", 20, "u5", "a3", said(std::string(39, 's'))) +
                          line("assistant", 25, "a5", "u5", answer("m3", text(39), 3, 590, 10));
  const v1::Session session = claude_session(log);
  const v1::LlmRequest& last = session.nodes(session.nodes_size() - 1).llm();
  CHECK(last.prompt_tokens() == 600);
  CHECK(last.prompt(0).keep_tokens() == 590);
}

TEST_CASE("an API error is a failed request without output") {
  const std::string error =
      R"("isApiErrorMessage":true,"message":{"id":"e1","model":"<synthetic>","content":[{"type":"text","text":"API Error: 500"}],"usage":{"input_tokens":0,"output_tokens":0}})";
  const v1::Session session = claude_session(kTwoRequests + line("user", 20, "u5", "a3", said("more")) +
                                             line("assistant", 25, "e", "u5", error));
  const v1::Node& node = session.nodes(session.nodes_size() - 1);
  CHECK(node.llm().status() == v1::ERROR);
  CHECK(node.llm().output_tokens() == 0);
  CHECK(node.llm().prompt_tokens() > 1'500);
  CHECK(node.prov(0).field() == v1::LlmRequest::kPromptTokensFieldNumber);
  CHECK(node.prov(0).prov() == v1::ESTIMATED);
}

TEST_CASE("hostile logs give an Error or a valid trace, without a crash") {
  const std::string task = use("t9", "Task", R"({"subagent_type":"Explore","prompt":"look around"})");
  const std::string log = kTwoRequests + line("assistant", 13, "b1", "a3", answer("m4", task, 3, 1'600, 40)) +
                          line("user", 14, "x1", "", said("look around"), true) +
                          line("assistant", 16, "x2", "x1", answer("n1", text(100), 3, 800, 15), true) +
                          line("user", 21, "u2", "b1", result("t9", 390));
  CHECK(testing::hostile("claude-code", "hostile.jsonl", log) > 100);
}

// ---- the recorded corpora

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
