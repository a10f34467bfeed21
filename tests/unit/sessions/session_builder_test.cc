#include "traces/format/session_builder.h"

#include <doctest/doctest.h>

#include "tests/unit/traces/support.h"
#include "traces/format/block_key.h"

namespace kvtwin {
namespace {

v1::TraceHeader header_with_blocks(uint32_t block_tokens) {
  v1::TraceHeader header;
  header.set_schema_version(kTraceSchemaVersion);
  header.set_block_tokens(block_tokens);
  header.add_models(std::string("model"));
  header.add_tool_names(std::string("tool"));
  return header;
}

IdRuns key_of(const v1::Session& session, int node) {
  const Result<IdRuns> runs = decode_key(session.nodes(node).llm().prompt_key());
  REQUIRE(runs);
  return *runs;
}

TEST_CASE("an agent thread gives a session that passes every check") {
  SessionBuilder session("s", "test", 16);
  AgentThread main(&session, session.add_agent("main", "main", 0));
  main.say({.role = v1::INST, .tokens = 40});
  main.say({.role = v1::USER, .tokens = 10});
  std::vector<Piece> made;
  main.request({{.role = v1::ASSISTANT, .tokens = 5}, {.role = v1::TOOL_CALL, .tokens = 7, .tool = 1}},
               &made);
  main.tool(1, made[1], {.tokens = 20}, 1'000, 12);
  AgentThread helper(&session, session.add_agent("helper", "explore", 0));
  helper.say({.role = v1::INST, .tokens = 30});
  helper.wait_for(main.last_request(), v1::DEP_SPAWN, 500, 5);
  helper.request({{.role = v1::ASSISTANT, .tokens = 9}});
  main.wait_for(helper.last_request(), v1::DEP_JOIN);
  main.think_ns = 77;
  const uint32_t last = main.request({{.role = v1::ASSISTANT, .tokens = 3}});
  const v1::Session done = session.take();

  testing::KeepAll sink;
  REQUIRE(sink.header(header_with_blocks(16)));
  CHECK(testing::problem(sink.session(done)) == "");
  const v1::LlmRequest& request = done.nodes(static_cast<int>(last)).llm();
  CHECK(request.prompt_tokens() == 40 + 10 + 12 + 20);
  CHECK(request.think_ns() == 77);
  CHECK(request.prompt_size() == 1);  // main's spans are contiguous until the helper adds one
  REQUIRE(done.nodes(static_cast<int>(last)).deps_size() == 3);
  CHECK(done.nodes(static_cast<int>(last)).deps(0).kind() == v1::DEP_DATA);
  CHECK(done.nodes(static_cast<int>(last)).deps(1).node() == 1);
  CHECK(done.nodes(static_cast<int>(last)).deps(2).kind() == v1::DEP_JOIN);
  CHECK(done.nodes(1).deps(0).at_output_token() == 12);
  CHECK(done.nodes(2).deps(0).delay_ns() == 500);
}

TEST_CASE("block keys share exactly the whole blocks of a common prefix") {
  SessionBuilder session("s", "test", 16);
  const uint32_t agent = session.add_agent("main", "main", 0);
  History history;
  history.add(session.add_span({.role = v1::INST, .tokens = 100}));
  session.add_llm(agent, history, {});
  history.add(session.add_span({.role = v1::USER, .tokens = 60}));
  session.add_llm(agent, history, {});  // grows: 100 tokens in common
  history.cut(90);
  history.add(session.add_span({.role = v1::USER, .tokens = 70}));
  session.add_llm(agent, history, {});  // diverges after 90 tokens
  const v1::Session done = session.take();
  CHECK(blocks_in(key_of(done, 0)) == 100 / 16);
  CHECK(blocks_in(key_of(done, 1)) == 160 / 16);
  CHECK(common_blocks(key_of(done, 0), key_of(done, 1)) == 100 / 16);
  CHECK(common_blocks(key_of(done, 1), key_of(done, 2)) == 90 / 16);
  CHECK(done.nodes(2).llm().prompt(0).keep_tokens() == 90);
  CHECK(key_of(done, 1).size() == 1);  // ids in order of appearance form one run
}

TEST_CASE("blocks inside shared tables have the same ids in every session, all others do not") {
  std::vector<IdRuns> keys;
  for (const uint32_t second : {2u, 2u, 3u}) {
    SessionBuilder session("s", "test", 16);
    const uint32_t agent = session.add_agent("main", "main", 0);
    History history;
    history.add({1, 0, 100, 100});
    history.add({second, 0, 40, 40});
    history.add(session.add_span({.role = v1::USER, .tokens = 20}));
    session.add_llm(agent, history, {});
    keys.push_back(key_of(session.take(), 0));
  }
  const auto shared = [](const IdRuns& runs) {
    uint64_t blocks = 0;
    for (const IdRun& run : runs) blocks += run.scope == v1::SCOPE_DATASET ? run.count : 0;
    return blocks;
  };
  CHECK(shared(keys[0]) == 140 / 16);
  CHECK(common_blocks(keys[0], keys[1]) == 160 / 16);  // equal ids: the caller separates SESSION scopes
  CHECK(common_blocks(keys[0], keys[2]) == 100 / 16);  // another second table: only the first is shared
}

TEST_CASE("a history can lose its tail and spans in the middle") {
  History history;
  history.add({0, 0, 10, 10});
  history.add({0, 1, 10, 10});
  history.add({0, 2, 10, 10});
  history.remove(1);
  CHECK(history.tokens() == 20);
  history.cut(15);
  CHECK(history.tokens() == 15);
  CHECK(history.pieces().back() == Piece{0, 2, 10, 5});
  history.cut(10);
  CHECK(history.pieces().size() == 1);
  history.cut(0);
  CHECK(history.pieces().empty());
}

}  // namespace
}  // namespace kvtwin
