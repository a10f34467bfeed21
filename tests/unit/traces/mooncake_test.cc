#include "traces/importers/mooncake.h"

#include <nlohmann/json.hpp>
#include <set>

#include "tests/unit/traces/support.h"
#include "traces/format/compact_json.h"
#include "traces/format/source_files.h"
#include "traces/importers/importers.h"

using namespace kvtwin;
using namespace kvtwin::testing;
using nlohmann::json;

namespace {

const char* const kTwo =
    "{\"timestamp\": 0, \"input_length\": 1000, \"output_length\": 20, \"hash_ids\": [0, 1]}\r\n"
    "\n"
    "{\"created_time\": 2500.5, \"input_tokens\": 1500, \"output_tokens\": 7, \"hash_ids\": [0, 1, 5]}";

std::vector<json> rows_of(const std::string& path) {
  std::vector<json> rows;
  REQUIRE(for_each_line(path, [&](uint64_t, std::string_view line) -> Result<void> {
            rows.push_back(json::parse(line));
            return {};
          }).has_value());
  return rows;
}

}  // namespace

TEST_CASE("Mooncake: rows are open-loop sessions of one request; aliases and blank lines are read") {
  const Folder dir;
  const KeepAll all = imported("auto", dir.write("m.jsonl", kTwo));
  REQUIRE(all.sessions.size() == 2);
  CHECK(all.head.block_tokens() == 512);
  CHECK(all.head.tail_block_hashed());
  CHECK(all.sessions[1].arrival_at_ns() == 2'500'500'000);
  const v1::LlmRequest& request = all.sessions[1].nodes(0).llm();
  CHECK(request.prompt_tokens() == 1500);
  CHECK(request.output_tokens() == 7);
  CHECK(decode_key(request.prompt_key()).value() ==
        IdRuns{{0, 2, v1::SCOPE_DATASET}, {5, 1, v1::SCOPE_DATASET}});
}

TEST_CASE("trap 3: Mooncake ids cover ceil(in/512) blocks; one more is refused with a remedy") {
  const Folder dir;
  const auto path =
      dir.write("m.jsonl", R"({"timestamp":0,"input_length":513,"output_length":1,"hash_ids":[1,2,3]})");
  CHECK(contains(import_error("mooncake", path).text(), "m.jsonl:1: 3 hash ids for 513 tokens"));
  ImportOptions options;
  options.block_tokens = 256;
  CHECK(imported("mooncake", path, options).sessions.size() == 1);
}

TEST_CASE(
    "Mooncake: rows with ids for a part of their prompt are counted in a note; rows without ids are not") {
  const Folder dir;
  const auto path =
      dir.write("m.jsonl",
                "{\"timestamp\":0,\"input_length\":1024,\"output_length\":1,\"hash_ids\":[1,2]}\n"
                "{\"timestamp\":1,\"input_length\":10000,\"output_length\":1,\"hash_ids\":[1]}\n"
                "{\"timestamp\":2,\"input_length\":10000,\"output_length\":1}\n");
  std::vector<std::string> notes;
  ImportOptions options;
  options.notes = &notes;
  imported("mooncake", path, options);
  REQUIRE(notes.size() == 1);
  CHECK(contains(notes[0], "1 of 3 rows have hash ids for fewer tokens than their prompt"));
}

TEST_CASE("Mooncake: rows of one session_id wait for each other, by delay or by stamps") {
  const Folder dir;
  const KeepAll all =
      imported("mooncake", dir.write("m.jsonl",
                                     "{\"session_id\":\"a\",\"timestamp\":0,\"input_length\":512,\"output_"
                                     "length\":10,\"hash_ids\":[1]}\n"
                                     "{\"session_id\":\"b\",\"timestamp\":5,\"input_length\":512,\"output_"
                                     "length\":10,\"hash_ids\":[9]}\n"
                                     "{\"session_id\":\"a\",\"delay\":1500,\"input_length\":1024,\"output_"
                                     "length\":10,\"hash_ids\":[1,2]}\n"
                                     "{\"session_id\":\"a\",\"timestamp\":90000,\"input_length\":1024,"
                                     "\"output_length\":10,\"hash_ids\":[7,8]}\n"
                                     "{\"session_id\":\"b\",\"timestamp\":60005,\"input_length\":1024,"
                                     "\"output_length\":10,\"hash_ids\":[9,10]}\n"));
  REQUIRE(all.sessions.size() == 2);
  const v1::Session& a = all.sessions[0];
  REQUIRE(a.nodes_size() == 3);
  CHECK(a.nodes(1).llm().think_ns() == 1'500'000'000);
  CHECK(a.nodes(1).deps(0).kind() == v1::DEP_DATA);
  CHECK(a.nodes(2).deps(0).kind() == v1::DEP_CONTROL);  // other ids: the prompt was rewritten
  CHECK(marked(a.nodes(2), v1::LlmRequest::kThinkNsFieldNumber) ==
        v1::UNKNOWN);  // after a request without a stamp
  const v1::Node& b = all.sessions[1].nodes(1);
  CHECK(b.llm().think_ns() == 60'000'000'000 - estimated_service_ns(512, 10));
  CHECK(marked(b, v1::LlmRequest::kThinkNsFieldNumber) == v1::ESTIMATED);
}

TEST_CASE("trap 10: batched stamps are detected, and jitter spreads each batch within its limits") {
  const Folder dir;
  std::string text;
  for (int i = 0; i < 300; ++i) {
    text += R"({"input_length":512,"output_length":1,"hash_ids":[1],"timestamp":)" +
            std::to_string(i / 10 * 3000) + "}\n";
  }
  const auto path = dir.write("m.jsonl", text);
  std::vector<std::string> notes;
  ImportOptions options;
  options.notes = &notes;
  const KeepAll plain = imported("mooncake", path, options);
  CHECK(plain.head.time_resolution_ns() == 3e9);
  REQUIRE(notes.size() == 1);
  CHECK(contains(notes[0], "--jitter"));
  options.jitter_ns = 3'000'000'000;
  const KeepAll spread = imported("mooncake", path, options);
  std::set<int64_t> stamps;
  for (size_t i = 0; i < 300; ++i) {
    const int64_t at = spread.sessions[i].arrival_at_ns();
    CHECK(at >= plain.sessions[i].arrival_at_ns());
    CHECK(at < plain.sessions[i].arrival_at_ns() + options.jitter_ns);
    CHECK(at == spread.sessions[i].nodes(0).llm().recorded_at_ns());
    if (i > 0) CHECK(at >= spread.sessions[i - 1].arrival_at_ns());
    stamps.insert(at);
  }
  CHECK(stamps.size() == 300);
  bool marked_synthesised = false;
  for (const auto& policy : spread.head.policies()) {
    if (policy.field() == "Session.arrival_at_ns") marked_synthesised = policy.prov() == v1::SYNTHESISED;
  }
  CHECK(marked_synthesised);
  export_to("mooncake", spread, dir.file("back.jsonl"));  // the source's stamps come back
  std::multiset<int64_t> before, after;
  for (const json& row : rows_of(path)) before.insert(row["timestamp"].get<int64_t>());
  for (const json& row : rows_of(dir.file("back.jsonl"))) after.insert(row["timestamp"].get<int64_t>());
  CHECK(before == after);
}

TEST_CASE("Mooncake: inferred sessions chain a prompt to the one it continues") {
  const Folder dir;
  ImportOptions options;
  options.infer_sessions = true;
  // Row 2 continues row 0; row 3 shares only the first block; row 4 is too short to hold row 0's output.
  const KeepAll all = imported(
      "mooncake",
      dir.write("m.jsonl",
                "{\"timestamp\":0,\"input_length\":1030,\"output_length\":600,\"hash_ids\":[0,1,2]}\n"
                "{\"timestamp\":0,\"input_length\":1030,\"output_length\":10,\"hash_ids\":[0,8,9]}\n"
                "{\"timestamp\":60000,\"input_length\":2000,\"output_length\":10,\"hash_ids\":[0,1,3,4]}\n"
                "{\"timestamp\":60000,\"input_length\":1024,\"output_length\":10,\"hash_ids\":[0,7]}\n"
                "{\"timestamp\":70000,\"input_length\":1030,\"output_length\":10,\"hash_ids\":[0,1,6]}\n"),
      options);
  REQUIRE(all.sessions.size() == 4);
  CHECK(all.sessions[0].nodes_size() == 2);
  CHECK(all.sessions[0].nodes(1).llm().think_ns() == 60'000'000'000 - estimated_service_ns(1030, 600));
}

TEST_CASE("Mooncake: the real conversation trace is exported row by row") {
  KVT_NEED_DATA(path, "mooncake/conversation_trace.jsonl");
  const Folder dir;
  const KeepAll all = imported("mooncake", path);
  CHECK(all.sessions.size() == 12'031);
  CHECK(all.head.time_resolution_ns() == 3e9);
  for (const v1::Session& session : all.sessions) {
    for (const StepError& error : step_errors(session)) REQUIRE(error.ns == 0);
  }
  export_to("mooncake", all, dir.file("back.jsonl"));
  const auto before = rows_of(path), after = rows_of(dir.file("back.jsonl"));
  REQUIRE(before.size() == after.size());
  size_t equal = 0;
  for (size_t i = 0; i < before.size(); ++i) equal += before[i] == after[i];
  CHECK(equal == 12'031);
}

TEST_CASE("trap 7: ids of the real Mooncake trace are chained: none has two predecessors") {
  KVT_NEED_DATA(path, "mooncake/conversation_trace.jsonl");
  std::map<int64_t, int64_t> before;
  size_t twice = 0;
  PerSession sink([&](const v1::TraceHeader&, const v1::Session& session) {
    int64_t previous = -1;
    const IdRuns runs = decode_key(session.nodes(0).llm().prompt_key()).value();
    for (const IdRun& run : runs) {
      for (uint32_t k = 0; k < run.count; ++k) {
        const int64_t id = run.first + k;
        twice += before.emplace(id, previous).first->second != previous;
        previous = id;
      }
    }
  });
  REQUIRE(import_trace("mooncake", path, {}, &sink).has_value());
  CHECK(twice == 0);
}

TEST_CASE("Mooncake: the sessions inferred from the real trace match the prototype's number within 0.1 %") {
  KVT_NEED_DATA(path, "mooncake/conversation_trace.jsonl");
  ImportOptions options;
  options.infer_sessions = true;
  const KeepAll all = imported("mooncake", path, options);
  size_t multi = 0;
  int most = 0;
  for (const v1::Session& session : all.sessions) {
    multi += session.nodes_size() > 1;
    most = std::max(most, session.nodes_size());
  }
  CHECK(all.sessions.size() == 8'072);  // docs/design/trace-formats.md#data-sets: 8,078
  CHECK(multi == 2'007);                // 2,008
  CHECK(most == 43);                    // 43
}

TEST_CASE("Mooncake: malformed rows are reported by line") {
  const Folder dir;
  const auto said = [&](const std::string& text) {
    return import_error("mooncake", dir.write("m", text)).text();
  };
  CHECK(contains(said(""), "holds no rows"));
  CHECK(contains(said("{}"), "m:1: has no \"output_length\""));
  CHECK(contains(said(std::string(kTwo) + "\nx"), "m:4: "));
  CHECK(contains(said(R"({"output_length":1,"input_length":5})"), "has no timestamp"));
  CHECK(contains(said(R"({"timestamp":-1,"output_length":1,"input_length":5})"), "\"timestamp\" is -1"));
  CHECK(contains(said(R"({"timestamp":0,"output_length":1,"input_length":4294967295})"),
                 "4294967295 prompt tokens"));
}
