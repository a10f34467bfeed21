// WEKA's traps (docs/design/trace-formats.md#traps), each on a trace small enough to check by hand; more of
// them are in import_cases/weka.txt.
#include "traces/importers/weka.h"

#include <nlohmann/json.hpp>

#include "tests/unit/traces/support.h"
#include "traces/importers/importers.h"

using namespace kvtwin;
using namespace kvtwin::testing;
using nlohmann::json;

namespace {

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

TEST_CASE("trap 3: WEKA ids cover floor(in/64) blocks; one more is refused") {
  const KeepAll all = import_json(trace("t", json::array({request(0, 129, 1, ids(1, 2), 1, 0)})));
  CHECK(!all.head.tail_block_hashed());
  CHECK(blocks_in(decode_key(llm(all, 0).prompt_key()).value()) == 2);
  const Folder dir;
  const json bad = trace("t", json::array({request(0, 129, 1, ids(1, 3), 1, 0)}));
  CHECK(contains(import_error("weka", dir.write("t.json", bad.dump())).text(), "3 block ids for 129 tokens"));
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
