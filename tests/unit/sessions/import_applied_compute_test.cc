#include <doctest/doctest.h>

#include "tests/unit/sessions/foreign.h"

namespace kvtwin {
namespace {

using testing::Collect;
using testing::TempFile;

const std::string kRows =
    R"({"num_turns":2,"input_prompt_length":1000,"assistant_response_length":[50,60],"tool_call_output_length":[300,0],"tool_call_latency":[0.25,3],"final_assistant_response_length":80})"
    "\n"
    R"({"num_turns":1,"input_prompt_length":10,"assistant_response_length":[],"tool_call_output_length":[],"tool_call_latency":[],"final_assistant_response_length":5})"
    "\n";

TEST_CASE("Applied Compute: one row is one session of requests and tools") {
  const TempFile file("ac.jsonl", kRows);
  Collect sink;
  REQUIRE(testing::problem(import_applied_compute(file.path(), {}, &sink)) == "");
  REQUIRE(sink.sessions.size() == 2);
  const v1::Session& session = sink.sessions[0];
  REQUIRE(session.nodes_size() == 5);
  CHECK(session.nodes(0).llm().prompt_tokens() == 1'000);
  CHECK(session.nodes(0).llm().output_tokens() == 50);
  CHECK(session.nodes(1).tool().duration_ns() == 250'000'000);
  CHECK(session.nodes(2).llm().prompt_tokens() == 1'350);
  CHECK(session.nodes(3).tool().duration_ns() == 3'000'000'000);
  CHECK(session.nodes(3).tool().result_span() == 0);  // a tool may have no result
  CHECK(session.nodes(4).llm().prompt_tokens() == 1'410);
  CHECK(session.nodes(4).llm().output_tokens() == 80);
  CHECK(sink.sessions[1].nodes_size() == 1);
  CHECK(sink.finished == 1);
}

TEST_CASE("Applied Compute: malformed rows are reported by line") {
  const auto text_of = [](const std::string& bytes) {
    const std::string text = testing::error_of(import_applied_compute, "bad.jsonl", bytes);
    return text.substr(text.find("bad.jsonl") == std::string::npos ? 0 : text.find("bad.jsonl"));
  };
  const auto row = [](const std::string& turns, const std::string& prompt, const std::string& results) {
    return "\n{\"num_turns\":" + turns + ",\"input_prompt_length\":" + prompt +
           ",\"assistant_response_length\":[5,6],\"tool_call_output_length\":" + results +
           ",\"tool_call_latency\":[1,2],\"final_assistant_response_length\":5}";
  };
  CHECK(text_of("") == "bad.jsonl: no rows in it; one JSON object per line");
  CHECK(text_of(row("2", "10", "[1]")) ==
        "bad.jsonl:2: 2 answers, 1 tool outputs and 2 tool times; one of each per turn");
  CHECK(text_of(row("7", "10", "[1,2]")) ==
        "bad.jsonl:2: num_turns is 7, but there are 2 answers before the final one");
  CHECK(text_of(row("2", "0", "[1,2]")).starts_with("bad.jsonl:2: input_prompt_length is 0"));
  CHECK(text_of(row("2", "10", "[1,-2]")).starts_with("bad.jsonl:2: \"tool_call_output_length\" is -2"));
  CHECK(text_of(row("2", "4294967295", "[1,2]")).find("tokens in one session; at most") != std::string::npos);
}

TEST_CASE("hostile Applied Compute files give an Error or a valid trace, without a crash") {
  CHECK(testing::hostile(import_applied_compute, "hostile.jsonl", kRows) > 100);
}

}  // namespace
}  // namespace kvtwin
