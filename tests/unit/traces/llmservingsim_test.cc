#include "tests/unit/traces/support.h"
#include "traces/importers/importers.h"

using namespace kvtwin;
using namespace kvtwin::testing;

TEST_CASE("LLMServingSim: flat rows carry their token ids") {
  const Folder dir;
  const KeepAll all = imported(
      "auto",
      dir.write(
          "l.jsonl",
          R"({"input_toks":3,"output_toks":2,"arrival_time_ns":7,"input_tok_ids":[5,6,7],"output_tok_ids":[8,9]})"));
  const v1::Session& session = all.sessions.at(0);
  CHECK(session.arrival_at_ns() == 7);
  REQUIRE(session.spans_size() == 2);
  CHECK(session.spans(0).token_ids_size() == 3);
  CHECK(session.spans(1).token_ids(1) == 9);
  CHECK(session.spans(0).scope() == v1::SCOPE_GLOBAL);
}

TEST_CASE("LLMServingSim: sub_requests are a chain with tools between, and share repeated tokens") {
  const Folder dir;
  const KeepAll all = imported(
      "auto",
      dir.write(
          "l.jsonl",
          R"({"session_id":"q","arrival_time_ns":100,"sub_requests":[)"
          R"({"input_toks":2,"output_toks":2,"tool_duration_ns":50,"input_tok_ids":[1,2],"output_tok_ids":[3,4]},)"
          R"({"input_toks":5,"output_toks":1,"tool_duration_ns":0,"input_tok_ids":[1,2,3,4,5],"output_tok_ids":[6]},)"
          R"({"input_toks":3,"output_toks":1,"tool_duration_ns":9,"input_tok_ids":[1,2,3],"output_tok_ids":[6]}]})"));
  const v1::Session& session = all.sessions.at(0);
  REQUIRE(session.nodes_size() == 4);
  CHECK(session.nodes(1).tool().duration_ns() == 50);
  CHECK(session.nodes(2).deps(0).node() == 1);
  CHECK(session.nodes(3).deps(0).kind() == v1::DEP_DATA);
  const auto& second = session.nodes(2).llm().prompt();
  REQUIRE(second.size() == 3);
  CHECK(second[1].first() == 1);  // the first request's output
  CHECK(session.spans(static_cast<int>(second[2].first())).tokens() == 1);
  const auto& third = session.nodes(3).llm().prompt();
  REQUIRE(third.size() == 2);
  CHECK(third[1].keep_tokens() == 1);
  CHECK(*find_extra(session.extras(), "last_tool_duration_ns") == "9");
}

TEST_CASE("LLMServingSim: the real file has 300 requests and every token id") {
  KVT_NEED_DATA(path, "llmservingsim/sharegpt-llama-3.1-8b-300-sps10.jsonl");
  const KeepAll all = imported("auto", path);
  CHECK(all.sessions.size() == 300);
  uint64_t prompt = 0, ids = 0;
  for (const v1::Session& session : all.sessions) {
    prompt += session.nodes(0).llm().prompt_tokens();
    ids += static_cast<uint64_t>(session.spans(0).token_ids_size());
  }
  CHECK(ids == prompt);
}

TEST_CASE("LLMServingSim: malformed rows are reported") {
  const Folder dir;
  const auto said = [&](const std::string& row) {
    return import_error("llmservingsim", dir.write("l", row)).text();
  };
  CHECK(contains(said(R"({"input_toks":3,"output_toks":1,"arrival_time_ns":0,"input_tok_ids":[1]})"),
                 "l:1: \"input_tok_ids\" has 1 ids for 3 tokens"));
  CHECK(contains(said(R"({"arrival_time_ns":0,"sub_requests":[]})"), "\"sub_requests\" is empty"));
  CHECK(contains(said(R"({"arrival_time_ns":0,"sub_requests":[5]})"), "sub_requests[0]: 5 is no object"));
  CHECK(contains(said("[]"), "[] is no object"));
}
