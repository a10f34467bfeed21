#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "tests/unit/traces/hostile.h"

namespace kvtwin {
namespace {

using testing::Folder;
using testing::imported;
using testing::KeepAll;

const std::string kTwo = R"([{"task_id":0,"trial":0,"reward":0.0,"info":{},"traj":[
 {"role":"system","content":"Be kind to travellers, always."},
 {"role":"user","content":"Hello, I want to fly."},
 {"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"find","arguments":"{\"q\":1}"}}]},
 {"role":"tool","tool_call_id":"c1","name":"find","content":"{\"ok\":true}"},
 {"role":"assistant","content":"Here you are."},
 {"role":"user","content":"Thanks. ###STOP###"}]},
 {"task_id":0,"trial":1,"traj":[
 {"role":"system","content":"Be kind to travellers, always."},
 {"role":"user","content":"Hello!"},
 {"role":"assistant","content":"Yes?"},
 {"role":"user","content":"A flight."},
 {"role":"assistant","content":"Which one?","tool_calls":null,"function_call":null}]}])";

KeepAll tau_bench_trace(const std::string& bytes) {
  const Folder folder;
  return imported("tau-bench", folder.write("tau.json", bytes));
}

TEST_CASE("trap 11: tool schemas, absent in the source, are an INST estimate that is marked as one") {
  const KeepAll trace = tau_bench_trace(kTwo);
  REQUIRE(trace.tables.size() == 1);
  REQUIRE(trace.tables[0].spans_size() == 2);
  const v1::Span& schemas = trace.tables[0].spans(0);
  CHECK(schemas.role() == v1::INST);
  CHECK(schemas.tokens() == 180);
  REQUIRE(schemas.prov_size() == 1);
  CHECK(schemas.prov(0).prov() == v1::ESTIMATED);
  CHECK(schemas.prov(0).field() == v1::Span::kTokensFieldNumber);
  CHECK(trace.tables[0].spans(1).tokens() == 4 + 30 * 10 / 49);
  for (const v1::Session& session : trace.sessions) CHECK(session.nodes(0).llm().prompt(0).table() == 1);
}

TEST_CASE("messages become spans, requests and tools; times are synthesised, and the header states it") {
  const KeepAll trace = tau_bench_trace(kTwo);
  REQUIRE(trace.sessions.size() == 2);
  const v1::Session& first = trace.sessions[0];
  CHECK(first.id() == "tau-task0-trial0");
  REQUIRE(first.nodes_size() == 3);
  CHECK(first.nodes(1).tool().duration_ns() >= 1'000'000);
  CHECK(first.nodes(1).tool().duration_ns() <= 50'000'000);
  CHECK(first.nodes(2).deps_size() == 2);
  CHECK(first.spans(static_cast<int>(first.nodes(1).tool().call_span()) - 1).role() == v1::TOOL_CALL);
  CHECK(first.spans(static_cast<int>(first.nodes(1).tool().result_span()) - 1).role() == v1::OBS);
  const v1::Session& second = trace.sessions[1];
  CHECK(second.nodes(0).llm().think_ns() == 0);
  CHECK(second.nodes(1).llm().think_ns() >= 800'000'000);
  CHECK(second.nodes(1).llm().turn() == 1);
  bool marked = false;
  for (const v1::FieldPolicy& policy : trace.head.policies()) {
    marked = marked || (policy.field() == "ToolCall.duration_ns" && policy.prov() == v1::SYNTHESISED &&
                        policy.recipe() == 1);
  }
  CHECK(marked);
}

TEST_CASE("the same file and seed give the same trace") {
  CHECK(tau_bench_trace(kTwo).bytes() == tau_bench_trace(kTwo).bytes());
}

TEST_CASE("hostile tau-bench files give an Error or a valid trace, without a crash") {
  CHECK(testing::hostile("tau-bench", "hostile.json", kTwo) > 100);
}

TEST_CASE(
    "tau-bench: every session, request and tool of both sets (docs/design/trace-formats.md#schema), near a "
    "real tokenizer's counts") {
  struct Set {
    const char* file;
    uint64_t sessions, requests, tools;
    double prompt_p50;  // without schemas, docs/design/trace-formats.md#data-sets
  };
  for (const Set& set : {Set{"gpt-4o-airline", 200, 2'454, 1'164, 2'413},
                         Set{"grok3-retail_from_PR68", 115, 1'787, 932, 2'673}}) {
    const std::string path = testing::data(std::string("tau-bench/") + set.file + ".json");
    if (path.empty()) {
      MESSAGE("skipped: no tau-bench/" << set.file << ".json under KVTWIN_DATA");
      continue;
    }
    const KeepAll sink = imported("tau-bench", path);
    CHECK(sink.sessions.size() == set.sessions);
    CHECK(sink.counts.llm_requests() == set.requests);
    CHECK(sink.counts.tool_calls() == set.tools);
    CHECK(sink.tables.size() == 1);
    std::set<std::string> ids;
    std::vector<uint32_t> prompts;
    const uint32_t schemas = sink.tables[0].spans(0).tokens();
    for (const v1::Session& session : sink.sessions) {
      ids.insert(session.id());
      for (const v1::Node& node : session.nodes()) {
        if (node.has_llm()) prompts.push_back(node.llm().prompt_tokens() - schemas);
      }
    }
    std::sort(prompts.begin(), prompts.end());
    MESSAGE(std::string(set.file) << ": prompt p50 without schemas " << prompts[prompts.size() / 2]
                                  << ", schemas " << schemas);
    CHECK(prompts[prompts.size() / 2] == doctest::Approx(set.prompt_p50).epsilon(0.06));
    CHECK(ids.size() == set.sessions);
  }
}

}  // namespace
}  // namespace kvtwin
