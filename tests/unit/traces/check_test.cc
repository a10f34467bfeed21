#include "traces/format/check.h"

#include <functional>
#include <string>

#include "tests/unit/traces/support.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

v1::TraceHeader good_header() {
  v1::TraceHeader header;
  header.set_schema_version(kTraceSchemaVersion);
  header.set_block_tokens(16);
  header.add_tool_names("Bash");
  return header;
}

// Two requests and a tool between them.
v1::Session good_session() {
  v1::Session session;
  session.set_id("s");
  session.add_agents();
  for (const uint32_t tokens : {40u, 8u, 4u}) session.add_spans()->set_tokens(tokens);
  v1::LlmRequest& first = *session.add_nodes()->mutable_llm();
  first.set_prompt_tokens(40);
  first.add_prompt()->set_count(1);
  first.set_output_tokens(8);
  first.add_output()->set_first(1);
  first.mutable_output(0)->set_count(1);
  v1::Node& tool = *session.add_nodes();
  tool.mutable_tool()->set_tool(1);
  tool.add_deps();
  v1::Node& second = *session.add_nodes();
  second.add_deps()->set_node(1);
  second.mutable_llm()->set_prompt_tokens(50);
  v1::SpanRun& run = *second.mutable_llm()->add_prompt();
  run.set_count(3);
  run.set_keep_tokens(2);
  v1::BlockKey& key = *second.mutable_llm()->mutable_prompt_key();
  key.add_first_delta(0);
  key.add_count(3);
  return session;
}

std::string error_in(const std::function<void(v1::Session*)>& spoil) {
  SessionChecker checker;
  REQUIRE(checker.header(good_header()).has_value());
  v1::Session session = good_session();
  spoil(&session);
  const auto good = checker.session(session);
  return good ? "" : good.error().text();
}

}  // namespace

TEST_CASE("check: a session that keeps all rules passes") {
  CHECK(error_in([](v1::Session*) {}) == "");
}

TEST_CASE("check: every broken rule is named, with the node") {
  const auto llm = [](v1::Session* s, int i) { return s->mutable_nodes(i)->mutable_llm(); };
  const auto message = [](const std::function<void(v1::Session*)>& spoil, const std::string& text) {
    const std::string said = error_in(spoil);
    CAPTURE(said);
    CHECK(contains(said, text));
  };
  message([](auto* s) { s->clear_nodes(); }, "session 's': has no nodes");
  message([](auto* s) { s->clear_agents(); }, "has no agents");
  message([](auto* s) { s->mutable_nodes(1)->mutable_deps(0)->set_node(1); }, "node 1: depends on node 1");
  message([](auto* s) { s->mutable_nodes(2)->mutable_deps(0)->set_node(7); }, "node 2: depends on node 7");
  message([](auto* s) { s->mutable_nodes(1)->mutable_deps(0)->set_at_output_token(9); },
          "waits for output token 9");
  message([](auto* s) { s->mutable_nodes(2)->clear_deps(); }, "falls into 2 parts");
  message([](auto* s) { s->mutable_nodes(1)->clear_kind(); }, "neither a request, a tool nor a sub-agent");
  message([](auto* s) { s->mutable_nodes(1)->mutable_tool()->set_tool(2); }, "requests tool 2");
  message([](auto* s) { s->mutable_nodes(1)->set_agent(1); }, "belongs to agent 1");
  message([&](auto* s) { llm(s, 0)->set_prompt_tokens(41); },
          "prompt spans sum to 40 tokens, prompt_tokens is 41");
  message([&](auto* s) { llm(s, 0)->mutable_prompt(0)->set_first(3); }, "prompt run of 1 spans from 3");
  message([&](auto* s) { llm(s, 0)->mutable_prompt(0)->set_count(UINT32_MAX); },
          "prompt run of 4294967295 spans");
  message([&](auto* s) { llm(s, 0)->mutable_prompt(0)->set_table(4); }, "table 4, not defined");
  message([&](auto* s) { llm(s, 0)->mutable_prompt(0)->set_keep_tokens(41); },
          "keeps 41 tokens of a span of 40");
  message([&](auto* s) { llm(s, 2)->mutable_prompt_key()->set_count(0, 4); }, "4 block ids for 50 tokens");
  message([&](auto* s) { llm(s, 2)->set_think_ns(-1); }, "think time of -1 ns");
  message([&](auto* s) { llm(s, 2)->set_recorded_at_ns(INT64_MIN); }, "recorded time");
  message([&](auto* s) { llm(s, 2)->set_model(1); }, "requests model 1");
  message([](auto* s) { s->mutable_spans(0)->add_token_ids(1); }, "1 token ids for 40 tokens");
  message([](auto* s) { s->mutable_spans(0)->set_content_hash("x"); }, "a content_hash of 1 bytes");
}

TEST_CASE("check: waits that sum above 2^61 ns are refused, though each alone is not") {
  const auto said = error_in([](v1::Session* s) {
    s->set_arrival_at_ns(int64_t{1} << 60);
    s->mutable_nodes(2)->mutable_llm()->set_think_ns((int64_t{1} << 60) + 1);
  });
  CHECK(contains(said, "node 2: think time"));
}
