// WEKA's traps (docs/design/trace-formats.md#traps), each on a trace small enough to check by hand.
#include "traces/importers/weka.h"

#include <nlohmann/json.hpp>

#include "tests/unit/traces/support.h"
#include "traces/importers/importers.h"

using namespace kvtwin;
using namespace kvtwin::testing;
using nlohmann::json;

namespace {

constexpr int64_t kS = 1'000'000'000;

json ids(int from, int count) {
  json out = json::array();
  for (int i = 0; i < count; ++i) out.push_back(from + i);
  return out;
}

json request(double t, int in, int out, json hash_ids, double api, double think) {
  json made = {{"t", t},
               {"type", "n"},
               {"model", "m"},
               {"in", in},
               {"out", out},
               {"hash_ids", hash_ids},
               {"input_types", {"tool_result"}},
               {"output_types", {"text", "thinking", "tool_use"}},
               {"stop", "tool_use"}};
  if (api >= 0) made["api_time"] = api;
  if (think >= 0) made["think_time"] = think;
  return made;
}

json subagent(double t, json duration_ms, json requests, const char* status = "completed") {
  return {{"t", t},
          {"type", "subagent"},
          {"agent_id", "agent_001"},
          {"subagent_type", "Explore"},
          {"duration_ms", duration_ms},
          {"total_tokens", 5},
          {"tool_use_count", 1},
          {"status", status},
          {"requests", requests},
          {"models", {"h"}},
          {"tool_tokens", 64},
          {"system_tokens", 64}};
}

json trace(const std::string& id, json requests, int tool_tokens = 128, int system_tokens = 64) {
  return {{"id", id},
          {"models", {"m"}},
          {"block_size", 64},
          {"hash_id_scope", "local"},
          {"tool_tokens", tool_tokens},
          {"system_tokens", system_tokens},
          {"requests", requests},
          {"totals", json::object()}};
}

// A main agent that waits for two concurrent sub-agents, which end at 50 s and 90 s.
json with_subagents() {
  return trace("t",
               json::array({request(0, 640, 30, ids(1, 10), 10.0, 0.0),
                            subagent(50.0, 39000,
                                     json::array({request(0, 128, 9, ids(500, 2), 20.0, 0.0),
                                                  request(25, 192, 9, ids(500, 3), 10.0, 5.0)})),
                            subagent(90.0, 79000, json::array({request(0, 128, 9, ids(500, 2), 70.0, 0.0)})),
                            request(100.0, 704, 30, ids(1, 11), 5.0, 90.0)}));
}

KeepAll import_json(const json& tree, ImportOptions options = {}) {
  const Folder dir;
  return imported("weka", dir.write("t.json", tree.dump()), options);
}

const v1::LlmRequest& llm(const KeepAll& all, int node, size_t session = 0) {
  return all.sessions.at(session).nodes(node).llm();
}

}  // namespace

TEST_CASE("trap 1: a WEKA sub-agent's t is its end, and its requests count from its start") {
  const KeepAll all = import_json(with_subagents());
  CHECK(llm(all, 1).recorded_at_ns() == 11 * kS);  // 50 - 39
  CHECK(llm(all, 2).recorded_at_ns() == 36 * kS);  // 25 after that
  const v1::Node& first = all.sessions[0].nodes(1);
  REQUIRE(first.deps_size() == 1);
  CHECK(first.deps(0).kind() == v1::DEP_SPAWN);
  CHECK(first.deps(0).delay_ns() == 1 * kS);  // after the parent's end at 10
}

TEST_CASE("trap 2: the parent's think time after sub-agents excludes their wall time") {
  const KeepAll all = import_json(with_subagents());
  const v1::Node& node = all.sessions[0].nodes(4);
  // Recorded: 90 s after the request's end at 10. The later sub-agent ended at 90: 10 s remain.
  CHECK(node.llm().think_ns() == 10 * kS);
  CHECK(marked(node, v1::LlmRequest::kThinkNsFieldNumber) == v1::DERIVED);
  REQUIRE(node.deps_size() == 3);
  CHECK(node.deps(1).kind() == v1::DEP_JOIN);
  CHECK(node.deps(1).node() == 2);
  CHECK(node.deps(1).delay_ns() == 4 * kS);  // inner end at 11 + 25 + 10, sub-agent's end at 50
  CHECK(node.deps(2).delay_ns() == 9 * kS);
  for (const StepError& error : step_errors(all.sessions[0])) CHECK(error.ns == 0);
}

TEST_CASE("trap 2: a sub-agent launched in the background is not waited for") {
  json tree = with_subagents();
  tree["requests"][1]["status"] = "async_launched";
  tree["requests"][1]["duration_ms"] = nullptr;
  tree["requests"][1]["t"] = 11.0;  // then t is its launch
  const KeepAll all = import_json(tree);
  CHECK(llm(all, 1).recorded_at_ns() == 11 * kS);
  const v1::Node& node = all.sessions[0].nodes(4);
  REQUIRE(node.deps_size() == 2);
  CHECK(node.deps(1).node() == 3);
}

TEST_CASE("trap 3: WEKA ids cover floor(in/64) blocks; one more is refused") {
  const KeepAll all = import_json(trace("t", json::array({request(0, 129, 1, ids(1, 2), 1, 0)})));
  CHECK(!all.head.tail_block_hashed());
  CHECK(blocks_in(decode_key(llm(all, 0).prompt_key()).value()) == 2);
  const Folder dir;
  const json bad = trace("t", json::array({request(0, 129, 1, ids(1, 3), 1, 0)}));
  CHECK(contains(import_error("weka", dir.write("t.json", bad.dump())).text(), "3 block ids for 129 tokens"));
}

TEST_CASE("trap 4: after a request without api_time the wait is the gap less an estimated service") {
  // The recorded think time, 50 s, is longer than the whole gap of 40 s.
  const KeepAll all = import_json(trace(
      "t", json::array({request(0, 64, 674, ids(1, 1), -1, 0), request(40, 128, 1, ids(1, 2), 1, 50)})));
  const int64_t service = estimated_service_ns(64, 674);  // 1.26 + 10 s and a little
  CHECK(service > 11 * kS);
  CHECK(llm(all, 0).recorded_service_ns() == service);
  CHECK(marked(all.sessions[0].nodes(0), v1::LlmRequest::kRecordedServiceNsFieldNumber) == v1::ESTIMATED);
  CHECK(llm(all, 1).think_ns() == 40 * kS - service);
  CHECK(marked(all.sessions[0].nodes(1), v1::LlmRequest::kThinkNsFieldNumber) == v1::ESTIMATED);
}

TEST_CASE("trap 4: an estimated service ends before the next recorded event") {
  const KeepAll all = import_json(trace(
      "t", json::array({request(0, 64, 6740, ids(1, 1), -1, 0), request(3, 128, 1, ids(1, 2), 1, 50)})));
  CHECK(llm(all, 0).recorded_service_ns() == 3 * kS);
  CHECK(llm(all, 1).think_ns() == 0);
}

TEST_CASE("trap 5: WEKA ids hold within a session, and sharing a prefix is a choice") {
  const Folder dir;
  std::filesystem::create_directory(dir.file("in"));
  for (const auto& [name, tool, system] : {std::tuple{"a", 128, 64}, {"b", 128, 64}, {"c", 64, 64}}) {
    const json requests =
        json::array({request(0, 640, 1, ids(1, 10), 1, 0), request(9, 704, 2 + tool, ids(1, 11), 1, 8)});
    dir.write(std::string("in/") + name + ".json", trace(name, requests, tool, system).dump());
  }
  const auto keys = [&](PrefixSharing sharing) {
    ImportOptions options;
    options.sharing = sharing;
    options.all_files = true;
    const KeepAll all = imported("weka", dir.file("in"), options);
    std::vector<IdRuns> out;
    for (size_t s = 0; s < 3; ++s) out.push_back(decode_key(llm(all, 1, s).prompt_key()).value());
    return out;
  };
  for (const IdRuns& runs : keys(PrefixSharing::kNone)) CHECK(runs == IdRuns{{1, 11, v1::SCOPE_SESSION}});
  const auto equal = keys(PrefixSharing::kEqualPrefix);
  REQUIRE(equal[0].size() == 2);
  CHECK(equal[0][0].scope == v1::SCOPE_GLOBAL);
  CHECK(equal[0][0].count == 3);  // (128 + 64) / 64
  CHECK(equal[0][1] == IdRun{4, 8, v1::SCOPE_SESSION});
  CHECK(equal[1] == equal[0]);
  CHECK(common_blocks(equal[0], equal[2]) == 0);
  const auto all = keys(PrefixSharing::kAll);
  CHECK(all[1] == all[0]);
  CHECK(common_blocks(all[0], all[2]) == 2);  // as far as the shorter prefix reaches
}

TEST_CASE("trap 6: copies of a WEKA file count once, by list or by content") {
  const Folder dir;
  std::filesystem::create_directory(dir.file("in"));
  dir.write("in/a.json", trace("a", json::array({request(0, 64, 1, ids(1, 1), 1, 0)})).dump());
  dir.write("in/b.json", trace("b", json::array({request(0, 64, 1, ids(1, 1), 1, 0)})).dump());
  dir.write("in/c.json", trace("c", json::array({request(0, 64, 2, ids(1, 1), 1, 0)})).dump());
  std::vector<std::string> notes;
  ImportOptions options;
  options.notes = &notes;
  CHECK(imported("weka", dir.file("in"), options).sessions.size() == 2);
  REQUIRE(notes.size() == 1);
  CHECK(notes[0] == "1 files are copies of others and were left out");
  dir.write("unique_traces.json", R"(["b.json"])");
  const KeepAll listed = imported("weka", dir.file("in") + "/");
  REQUIRE(listed.sessions.size() == 1);
  CHECK(listed.sessions[0].id() == "b");
  options.all_files = true;
  CHECK(imported("weka", dir.file("in"), options).sessions.size() == 3);
}

TEST_CASE("WEKA spans: roles follow the ids, and every prompt sums up") {
  // Request 1 continues request 0; request 2 returns to its first 5 blocks (a compaction).
  const KeepAll all = import_json(
      trace("t", json::array({request(0, 640, 30, ids(1, 10), 1, 0), request(9, 704, 30, ids(1, 11), 1, 8),
                              request(19, 448, 30, json::array({1, 2, 3, 4, 5, 90, 91}), 1, 8)})));
  const v1::Session& session = all.sessions[0];
  const auto roles = [&](const auto& runs) {
    std::string out;
    for (const auto& run : runs) {
      for (uint32_t i = 0; i < run.count(); ++i) {
        const auto& span = session.spans(static_cast<int>(run.first() + i));
        const uint32_t kept =
            i + 1 == run.count() && run.keep_tokens() != 0 ? run.keep_tokens() : span.tokens();
        out += v1::Role_Name(span.role()) + "=" + std::to_string(kept) + " ";
      }
    }
    return out;
  };
  CHECK(roles(llm(all, 0).prompt()) == "INST=192 OBS=448 ");
  CHECK(roles(llm(all, 0).output()) == "REASONING=10 ASSISTANT=10 TOOL_CALL=10 ");
  CHECK(roles(llm(all, 1).prompt()) == "INST=192 OBS=448 REASONING=10 ASSISTANT=10 TOOL_CALL=10 OBS=34 ");
  CHECK(roles(llm(all, 2).prompt()) == "INST=192 OBS=128 OBS=128 ");
  CHECK(session.nodes(1).deps(0).kind() == v1::DEP_DATA);
  CHECK(session.nodes(2).deps(0).kind() == v1::DEP_CONTROL);
}

TEST_CASE("WEKA spans: reasoning that does not fit into the next prompt is excluded from it") {
  const KeepAll all = import_json(trace(
      "t", json::array({request(0, 640, 30, ids(1, 10), 1, 0), request(9, 660, 30, ids(1, 10), 1, 8)})));
  const auto& prompt = llm(all, 1).prompt();
  REQUIRE(prompt.size() == 2);
  CHECK(prompt[1].first() == 3);  // span 2 is the reasoning
  CHECK(prompt[1].count() == 2);
}

TEST_CASE("WEKA export: every field is exported, including sub-agents and estimated requests") {
  json tree = with_subagents();
  tree["requests"].push_back(request(200, 768, 3, ids(1, 12), -1, -1));
  tree["requests"].push_back(request(300, 768, 3, ids(1, 12), 2, 99));
  tree["requests"][4]["ttft"] = 0.25;
  tree["requests"].push_back(subagent(400.0, 1500, json::array()));  // nothing recorded inside
  const Folder dir;
  const KeepAll all = imported("weka", dir.write("t.json", tree.dump()));
  export_to("weka", all, dir.file("out"));
  CHECK(json::parse(slurp(dir.file("out/t.json"))) == tree);
}

TEST_CASE("WEKA export: session ids that are not file names, and shared prefixes, are refused") {
  const Folder dir;
  KeepAll all = import_json(with_subagents());
  all.sessions[0].set_id("../x");
  auto sink = make_exporter("weka", dir.file("out")).value();
  REQUIRE(sink->header(all.head).has_value());
  CHECK(contains(sink->session(all.sessions[0]).error().text(), "cannot name a file"));
  ImportOptions options;
  options.sharing = PrefixSharing::kAll;
  all = import_json(with_subagents(), options);
  CHECK(contains(sink->session(all.sessions[0]).error().text(), "--sharing=none"));
}
