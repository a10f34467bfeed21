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
