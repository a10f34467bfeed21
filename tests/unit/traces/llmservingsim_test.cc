#include "tests/unit/traces/support.h"
#include "traces/importers/importers.h"

using namespace kvtwin;
using namespace kvtwin::testing;

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
