#include "traces/inspect/inspect.h"

#include <fmt/format.h>

#include "tests/unit/traces/support.h"
#include "traces/inspect/cut.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

nlohmann::ordered_json inspected(const std::string& format, const std::string& path) {
  TraceInspector inspector;
  const auto good = import_trace(format, path, {}, &inspector);
  REQUIRE_MESSAGE(good.has_value(), (good ? "" : good.error().text()));
  CHECK(!inspector.table().empty());
  return inspector.json();
}

}  // namespace

TEST_CASE("inspect: counts, percentiles and reuse of a trace small enough to check by hand") {
  const Folder dir;
  const auto got = inspected(
      "mooncake",
      dir.write("m.jsonl",
                "{\"session_id\":\"a\",\"timestamp\":0,\"input_length\":1024,\"output_length\":10,\"hash_"
                "ids\":[1,2]}\n"
                "{\"session_id\":\"a\",\"delay\":2000,\"input_length\":1536,\"output_length\":20,\"hash_"
                "ids\":[1,2,3]}\n"
                "{\"timestamp\":5,\"input_length\":600,\"output_length\":30,\"hash_ids\":[1,9]}\n"));
  CHECK(got["sessions"] == 2);
  CHECK(got["requests"] == 3);
  CHECK(got["prompt_tokens"] == 3160);
  CHECK(got["distributions"]["output_tokens"]["p50"] == 20);
  CHECK(got["distributions"]["requests_per_session"]["max"] == 2);
  CHECK(got["distributions"]["think_s"]["max"] == 2.0);
  // 7 blocks; new in their session: 1 2 3, 1 9; new in the trace: 1 2 3 9.
  CHECK(got["ideal_reuse"]["in_session"].get<double>() == doctest::Approx(1 - 5.0 / 7));
  CHECK(got["ideal_reuse"]["in_trace"].get<double>() == doctest::Approx(1 - 4.0 / 7));
  CHECK(got["provenance"]["wait_time"]["recorded"] == 1.0);
  CHECK(got["windows"][0]["requests_that_fit"] == 1.0);
}

TEST_CASE("inspect: token ids are compared across sessions, and spans within one") {
  const Folder dir;
  std::string ids = "0";
  for (int i = 1; i < 32; ++i) ids += fmt::format(",{}", i);
  const std::string row =
      "{\"input_toks\":32,\"output_toks\":1,\"arrival_time_ns\":0,\"input_tok_ids\":[" + ids + "]}\n";
  const auto flat = inspected("llmservingsim", dir.write("l.jsonl", row + row));
  CHECK(flat["ideal_reuse"]["in_session"] == 0.0);
  CHECK(flat["ideal_reuse"]["in_trace"] == 0.5);
  const auto delta = inspected(
      "mooncake-delta",
      dir.write(
          "d.jsonl",
          "{\"session_id\":\"a\",\"timestamp\":0,\"input_length\":100,\"output_length\":100,\"hash_ids\":[1]}"
          "\n"
          "{\"session_id\":\"a\",\"delay\":1,\"input_length\":100,\"output_length\":1,\"hash_ids\":[2]}\n"));
  CHECK(delta["ideal_reuse"]["in_session"].get<double>() == doctest::Approx(0.25));  // 100 of 100 + 300
}

TEST_CASE("inspect: real traces have the reuse that docs/design/trace-formats.md#data-sets reports") {
  KVT_NEED_DATA(mooncake, "mooncake/conversation_trace.jsonl");
  const auto got = inspected("mooncake", mooncake);
  CHECK(got["ideal_reuse"]["in_trace"].get<double>() == doctest::Approx(0.366).epsilon(0.002));
  CHECK(got["distributions"]["prompt_tokens"]["max"] == 126'195);
}

TEST_CASE("cut: a session keeps its head, and a truncated sub-agent delays its parent by the same time") {
  v1::Session session;
  session.set_id("s");
  session.add_agents();
  session.add_agents();
  // 0 main -> 1, 2 sub-agent -> 3 main -> 4 main. Nodes 2 and 4 are too long.
  const int64_t starts[] = {0, 10, 20, 50, 60};
  for (int i = 0; i < 5; ++i) {
    v1::Node& node = *session.add_nodes();
    node.set_agent(i == 1 || i == 2 ? 1 : 0);
    v1::LlmRequest& request = *node.mutable_llm();
    request.set_prompt_tokens(i == 2 || i == 4 ? 1000 : 100);
    request.set_recorded_at_ns(starts[i]);
    request.set_recorded_service_ns(5);
    if (i == 0) continue;
    v1::Dep& dep = *node.add_deps();
    dep.set_node(i == 3 ? 0u : static_cast<uint32_t>(i - 1));
    dep.set_kind(i == 1 ? v1::DEP_SPAWN : v1::DEP_DATA);
    if (i != 3) continue;
    v1::Dep& join = *node.add_deps();
    join.set_node(2);
    join.set_kind(v1::DEP_JOIN);
    join.set_delay_ns(7);
  }
  v1::TraceHeader header;
  header.set_schema_version(kTraceSchemaVersion);
  header.set_request_arrivals(v1::ARR_CLOSED_LOOP);
  const auto cut = [&](CutOptions options) {
    KeepAll all;
    TraceCut filter(options, &all);
    REQUIRE(filter.header(header).has_value());
    const auto good = filter.session(session);
    REQUIRE_MESSAGE(good.has_value(), (good ? "" : good.error().text()));
    return all.sessions;
  };
  const auto windowed = cut({.window_tokens = 500});
  REQUIRE(windowed.size() == 1);
  REQUIRE(windowed[0].nodes_size() == 3);
  const v1::Node& after = windowed[0].nodes(2);
  REQUIRE(after.deps_size() == 2);
  CHECK(after.deps(1).node() == 1);
  CHECK(after.deps(1).delay_ns() == 7 + 10);  // node 1 ended at 15, node 2 at 25
  CHECK(cut({.window_tokens = 500, .head_requests_min = 3}).empty());
  CHECK(cut({.requests_max = 2})[0].nodes_size() == 2);
  CHECK(cut({.until_ns = 50})[0].nodes_size() == 3);
  const auto opaque = cut({.opaque_sub_agents = true});
  REQUIRE(opaque[0].nodes_size() == 4);
  CHECK(opaque[0].nodes(1).opaque().duration_ns() == 15);  // from 10 to 25
  CHECK(opaque[0].nodes(2).deps(1).node() == 1);
}

TEST_CASE("cut: nodes that only a dropped request connected with the head are dropped with it") {
  v1::Session session;
  session.set_id("s");
  session.add_agents();
  session.add_agents();
  // 0 main, and 1 sub-agent, which nothing starts; 2 main waits for both, and is too long.
  for (int i = 0; i < 3; ++i) {
    v1::Node& node = *session.add_nodes();
    node.set_agent(i == 1 ? 1 : 0);
    node.mutable_llm()->set_prompt_tokens(i == 2 ? 1000 : 100);
    node.mutable_llm()->set_output_tokens(1);
  }
  for (const uint32_t before : {0u, 1u}) {
    v1::Dep& dep = *session.mutable_nodes(2)->add_deps();
    dep.set_node(before);
    dep.set_kind(v1::DEP_DATA);
  }
  v1::TraceHeader header;
  header.set_schema_version(kTraceSchemaVersion);
  KeepAll all;
  TraceCut filter({.window_tokens = 500}, &all);
  REQUIRE(filter.header(header).has_value());
  REQUIRE(filter.session(session).has_value());
  REQUIRE(all.sessions.size() == 1);
  REQUIRE(all.sessions[0].nodes_size() == 1);
  CHECK(all.sessions[0].nodes(0).agent() == 0);
}

TEST_CASE("cut: limits on sessions and requests apply to the whole trace") {
  const Folder dir;
  std::string rows;
  for (int i = 0; i < 10; ++i)
    rows += fmt::format("{{\"timestamp\":{},\"input_length\":5,\"output_length\":1}}\n", i);
  const std::string path = dir.write("m.jsonl", rows);
  const auto count = [&](CutOptions options) {
    KeepAll all;
    TraceCut filter(options, &all);
    REQUIRE(import_trace("mooncake", path, {}, &filter).has_value());
    CHECK(all.ended);
    return all.sessions.size();
  };
  CHECK(count({}) == 10);
  CHECK(count({.sessions_max = 4}) == 4);
  CHECK(count({.requests_max = 7}) == 7);
  CHECK(count({.until_ns = 3'000'000}) == 3);
}
