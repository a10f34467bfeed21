#include "tests/unit/traces/support.h"
#include "traces/importers/importers.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

constexpr int64_t kMs = 1'000'000;

// b and c wait for a; d waits for both, with a tool; e is alone. d is listed before its dependencies.
const char* const kGraph =
    R"({"request_id":"a","timestamp":100,"input_length":512,"output_length":9,"hash_ids":[1]}
{"request_id":"d","wait_for":["b","c"],"delay":30,"tool_wait_ms":400,"input_length":1536,"output_length":9,"hash_ids":[1,2,3],"prefix_reset":true}
{"request_id":"b","wait_for":["a"],"delay":5,"input_length":1024,"output_length":9,"hash_ids":[1,2]}
{"request_id":"c","wait_for":["a"],"input_length":512,"output_length":9,"hash_ids":[7]}
{"request_id":"e","timestamp":50,"input_length":512,"output_length":9,"hash_ids":[9]}
)";

}  // namespace

TEST_CASE("agentic_mooncake: sessions are connected components, in order of arrival; waits are preserved") {
  const Folder dir;
  const KeepAll all = imported("auto", dir.write("m.jsonl", kGraph));
  REQUIRE(all.sessions.size() == 2);
  CHECK(all.sessions[0].id() == "e");
  const v1::Session& session = all.sessions[1];
  CHECK(session.arrival_at_ns() == 100 * kMs);
  REQUIRE(session.nodes_size() == 5);
  CHECK(session.nodes(1).llm().think_ns() == 5 * kMs);
  CHECK(session.nodes(1).deps(0).kind() == v1::DEP_DATA);
  CHECK(session.nodes(2).deps(0).kind() == v1::DEP_CONTROL);
  CHECK(session.nodes(3).tool().duration_ns() == 400 * kMs);
  CHECK(session.nodes(3).deps_size() == 2);
  const v1::Node& last = session.nodes(4);
  CHECK(last.llm().think_ns() == 30 * kMs);
  REQUIRE(last.deps_size() == 2);
  CHECK(last.deps(0).node() == 1);  // its prompt continues b's
  CHECK(last.deps(0).kind() == v1::DEP_DATA);
  CHECK(last.deps(1).node() == 3);
  CHECK(contains(*find_extra(last.extras(), "mooncake"), "prefix_reset"));
}

TEST_CASE("agentic_mooncake: cycles, unknown and repeated names are errors") {
  const Folder dir;
  const auto said = [&](const std::string& rows) {
    return import_error("agentic_mooncake", dir.write("m", rows)).text();
  };
  const std::string tail = R"(,"input_length":5,"output_length":1})";
  CHECK(contains(said(R"({"request_id":"a","wait_for":["b"])" + tail + "\n" +
                      R"({"request_id":"b","wait_for":["a"])" + tail),
                 "m:1: waits, through others, for itself"));
  CHECK(contains(said(R"({"request_id":"a","wait_for":["x"])" + tail), "waits for 'x'"));
  CHECK(contains(said(R"({"request_id":"a")" + tail), "neither wait_for nor a timestamp"));
  CHECK(contains(said(R"({"timestamp":1)" + tail), "has no \"request_id\""));
  const std::string row = R"({"request_id":"a","timestamp":1)" + tail;
  CHECK(contains(said(row + "\n" + row), "m:2: request_id 'a' is there twice"));
}

TEST_CASE("mooncake-delta: a prompt is all segments and outputs so far") {
  const Folder dir;
  const KeepAll all = imported(
      "mooncake-delta",
      dir.write(
          "m.jsonl",
          "{\"session_id\":\"a\",\"timestamp\":0,\"input_length\":600,\"output_length\":10,\"hash_ids\":[1,2]"
          "}\n"
          "{\"session_id\":\"a\",\"delay\":250,\"input_length\":100,\"output_length\":20,\"hash_ids\":[3]}\n"
          "{\"session_id\":\"b\",\"timestamp\":9,\"input_length\":512,\"output_length\":0,\"hash_ids\":[1]}"
          "\n"));
  REQUIRE(all.sessions.size() == 2);
  const v1::Session& a = all.sessions[0];
  CHECK(a.nodes(0).llm().prompt_tokens() == 600);
  CHECK(a.nodes(1).llm().prompt_tokens() == 710);
  CHECK(a.nodes(1).llm().think_ns() == 250 * kMs);
  CHECK(a.nodes(1).deps(0).kind() == v1::DEP_DATA);
  REQUIRE(a.spans_size() == 5);  // 512, 88, output 10, 100, output 20
  CHECK(a.spans(1).tokens() == 88);
  CHECK(a.spans(0).content_hash() == all.sessions[1].spans(0).content_hash());
  CHECK(a.spans(0).content_hash() != a.spans(1).content_hash());
  CHECK(a.spans(2).content_hash().empty());
  CHECK(!a.nodes(1).llm().has_prompt_key());
}
