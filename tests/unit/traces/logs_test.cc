// Request logs of other tools: the fields that each importer reads, sessions, waits and prefixes.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tests/unit/traces/support.h"
#include "traces/format/compact_json.h"
#include "traces/importers/importers.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

const std::string kHello = R"({"role":"user","content":"What is the capital of France, please?"})";
const std::string kParis = R"({"role":"assistant","content":"The capital of France is Paris."})";
const std::string kMore = R"({"role":"user","content":"Tell me more about it."})";

struct Imported {
  KeepAll all;
  std::vector<std::string> notes;
  bool noted(const std::string& part) const {
    return std::any_of(notes.begin(), notes.end(),
                       [&](const std::string& note) { return contains(note, part); });
  }
  const v1::LlmRequest& llm(size_t session, int node) const {
    return all.sessions.at(session).nodes(node).llm();
  }
};

// Recognises the format, checks every session, and that replaying recorded service times gives the recorded
// starts.
Imported read(const std::string& format, const std::string& path) {
  const Result<std::string> guess = guess_format(path);
  REQUIRE_MESSAGE(guess.has_value(), (guess ? "" : guess.error().text()));
  CHECK(*guess == format);
  Imported out;
  ImportOptions options;
  options.notes = &out.notes;
  out.all = imported(format, path, options);
  for (const v1::Session& session : out.all.sessions) {
    if (out.all.head.session_arrivals() == v1::ARR_NONE) break;
    for (const StepError& error : step_errors(session)) CHECK(error.ns == 0);
  }
  return out;
}

// The tokens of a prompt that an earlier request of the session sent in the same place.
uint32_t shared_tokens(const v1::Session& session, int a, int b) {
  const auto spans = [&](int node) {
    std::vector<uint32_t> out;
    for (const v1::SpanRun& run : session.nodes(node).llm().prompt()) {
      for (uint32_t i = 0; i < run.count(); ++i) out.push_back(run.first() + i);
    }
    return out;
  };
  const std::vector<uint32_t> first = spans(a), second = spans(b);
  uint32_t tokens = 0;
  for (size_t i = 0; i < std::min(first.size(), second.size()) && first[i] == second[i]; ++i)
    tokens += session.spans(static_cast<int>(first[i])).tokens();
  return tokens;
}

}  // namespace

TEST_CASE("logs: vLLM's benchmark result has lengths and arrivals") {
  const Folder dir;
  const Imported got = read("bench", dir.write("bench.json", R"({"model_id": "m", "input_lens": [100, 50, 7],
    "output_lens": [3, 2, 0], "start_times": [1000.5, 1000.0, 1001.0], "ttfts": [0.2, 0.1, 0.0],
    "itls": [[0.05, 0.06], [0.02], []], "errors": ["", "", "timeout"]})"));
  REQUIRE(got.all.sessions.size() == 2);
  CHECK(got.llm(0, 0).prompt_tokens() == 50);
  CHECK(got.llm(1, 0).prompt_tokens() == 100);
  CHECK(got.all.sessions[1].arrival_at_ns() == 500'000'000);
  CHECK(got.llm(1, 0).recorded_ttft_ns() == 200'000'000);
  CHECK(got.llm(1, 0).recorded_service_ns() == 310'000'000);
  CHECK(got.all.head.models(0) == "m");
  CHECK(got.noted("1 of 3 requests failed and is left out"));
  CHECK(got.noted("each request is a session of its own"));
}

TEST_CASE("logs: AIPerf's records, with the text of inputs.json next to them") {
  const Folder dir;
  const auto record = [](int turn, const char* start, const char* end, int input) {
    return R"({"metadata":{"x_correlation_id":"s","conversation_id":"c","turn_index":)" +
           std::to_string(turn) + R"(,"request_start_ns":)" + start + R"(,"request_end_ns":)" + end +
           R"(,"was_cancelled":false},"metrics":{"input_sequence_length":{"value":)" + std::to_string(input) +
           R"(,"unit":"tokens"},"output_sequence_length":{"value":8,"unit":"tokens"},)"
           R"("time_to_first_token":{"value":20.5,"unit":"ms"}},"error":null})"
           "\n";
  };
  const std::string path =
      dir.write("run/profile_export.jsonl", record(0, "1759813207000000000", "1759813208000000000", 12) +
                                                record(1, "1759813210000000000", "1759813211000000000", 40));
  const Imported alone = read("aiperf", path);
  REQUIRE(alone.all.sessions.size() == 1);
  CHECK(alone.llm(0, 1).think_ns() == 2'000'000'000);
  CHECK(alone.llm(0, 1).recorded_ttft_ns() == 20'500'000);
  CHECK(alone.all.head.origin_unix_ns() == 1'759'813'207'000'000'000);
  CHECK(alone.noted("sessions: by metadata.x_correlation_id"));
  CHECK(alone.noted("prefix reuse: estimated"));
  CHECK(shared_tokens(alone.all.sessions[0], 0, 1) == 12);

  dir.write("run/inputs.json", R"({"data":[{"session_id":"c","payloads":[{"messages":[)" + kHello +
                                   R"(]},{"messages":[)" + kHello + "," + kParis + "," + kMore + "]}]}]}");
  const Imported both = read("aiperf", path);
  CHECK(both.noted("from the text of 2 of 2 requests"));
  CHECK(shared_tokens(both.all.sessions[0], 0, 1) == 12);
  CHECK(both.llm(0, 1).prompt_tokens() == 40);
  const Imported folder{imported("aiperf", dir.file("run")), {}};
  CHECK(folder.all.sessions.size() == 1);
  CHECK(contains(
      import_error("aiperf", dir.write("profile_export_aiperf.json", R"({"aiperf_version":"1"})")).text(),
      "profile_export.jsonl: aiperf profile writes it"));
}

TEST_CASE("logs: inference-perf's lifecycle file has bodies as text, and chains of messages are sessions") {
  const Folder dir;
  const auto quoted = [](std::string text) { return nlohmann::json(std::move(text)).dump(); };
  const std::string first = R"({"model":"m","messages":[)" + kHello + "]}";
  const std::string second = R"({"model":"m","messages":[)" + kHello + "," + kParis + "," + kMore + "]}";
  const std::string answer = R"({"choices":[{"message":)" + kParis + "}]}";
  const Imported got = read(
      "inference-perf",
      dir.write(
          "per_request_lifecycle_metrics.json",
          R"([{"start_time":10.0,"end_time":11.0,"request":)" + quoted(first) + R"(,"response":)" +
              quoted(answer) +
              R"(,"info":{"input_tokens":20,"response_metrics":{"output_tokens":9,"output_token_times":[10.25,11.0]}},"error":null},
      {"start_time":12.0,"end_time":13.0,"request":)" +
              quoted(second) +
              R"(,"response":"x","info":{"request_metrics":{"text":{"input_tokens":45}},"output_tokens":5},"error":null},
      {"start_time":12.0,"end_time":13.0,"request":"","response":null,"info":{},"error":{"error_type":"t","error_msg":"m"}}])"));
  REQUIRE(got.all.sessions.size() == 1);
  CHECK(got.noted("whose messages extend an earlier request's are one session"));
  CHECK(got.llm(0, 0).recorded_ttft_ns() == 250'000'000);
  CHECK(got.llm(0, 1).think_ns() == 1'000'000'000);
  CHECK(got.all.sessions[0].nodes(1).deps(0).kind() == v1::DEP_DATA);
  // The second prompt lists the first prompt's span and the first answer's, which has 9 tokens.
  CHECK(shared_tokens(got.all.sessions[0], 0, 1) == 20);
  const v1::SpanRun& prefix = got.llm(0, 1).prompt(0);
  CHECK(prefix.count() == 3);
  CHECK(got.all.sessions[0].spans(1).tokens() == 9);
  CHECK(contains(
      import_error("inference-perf", dir.write("s.json", R"({"load_summary":{},"successes":{}})")).text(),
      "per_request: true"));
}

TEST_CASE("logs: GuideLLM's result, and a note if it has a sample of its requests") {
  const Folder dir;
  const Imported got =
      read("guidellm", dir.write("benchmarks.json", R"({"metadata":{"guidellm_version":"0.5"},
    "benchmarks":[{"metrics":{"request_totals":{"total":40}},"requests":{"successful":[
      {"request_id":"a","info":{"conversation_id":"c1","timings":{"request_start":1700000000.0,
        "first_token_iteration":1700000000.5,"request_end":1700000002.0}},"prompt_tokens":30,"output_tokens":4},
      {"request_id":"b","info":{"timings":{}},"request_start_time":1700000001.0,"request_end_time":1700000003.0,
        "prompt_tokens":31,"output_tokens":5}],"incomplete":[{"info":{}}],"errored":[]}}]})"));
  REQUIRE(got.all.sessions.size() == 2);
  CHECK(got.llm(0, 0).recorded_ttft_ns() == 500'000'000);
  CHECK(got.all.sessions[1].arrival_at_ns() == 1'000'000'000);
  CHECK(got.noted("has 3 of its 40 requests"));
}

TEST_CASE("logs: OpenTelemetry spans as OTLP JSON, one export a line, with vLLM's attributes too") {
  const Folder dir;
  const auto span = [](const std::string& id, const std::string& start, const std::string& end,
                       const std::string& attributes) {
    return R"({"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"t1","spanId":")" + id +
           R"(","startTimeUnixNano":")" + start + R"(","endTimeUnixNano":")" + end + R"(","attributes":[)" +
           attributes + "]}]}]}]}\n";
  };
  const auto text = [](const std::string& key, const std::string& value) {
    return R"({"key":")" + key + R"(","value":{"stringValue":)" + nlohmann::json(value).dump() + "}}";
  };
  const auto count = [](const std::string& key, int value) {
    return R"({"key":")" + key + R"(","value":{"intValue":")" + std::to_string(value) + R"("}})";
  };
  const Imported got = read(
      "otel",
      dir.write(
          "spans.jsonl",
          span("a", "1759813207000000000", "1759813208000000000",
               text("gen_ai.operation.name", "chat") + "," + text("gen_ai.conversation.id", "c9") + "," +
                   count("gen_ai.usage.input_tokens", 11) + "," + count("gen_ai.usage.output_tokens", 7)) +
              span("b", "1759813207000000000", "1759813207500000000",
                   text("gen_ai.operation.name", "execute_tool")) +
              span("c", "1759813209000000000", "1759813210000000000",
                   count("gen_ai.usage.prompt_tokens", 5) + "," + count("gen_ai.usage.completion_tokens", 6) +
                       R"(,{"key":"gen_ai.latency.time_to_first_token","value":{"doubleValue":0.125}})")));
  REQUIRE(got.all.sessions.size() == 2);
  CHECK(got.all.sessions[0].id() == "c9");
  CHECK(got.all.sessions[1].id() == "t1");
  CHECK(got.llm(1, 0).recorded_ttft_ns() == 125'000'000);
  CHECK(contains(import_error("otel", dir.write("none.json", R"({"resourceSpans":[]})")).text(),
                 "none of its 0 spans is a model call"));
}

TEST_CASE("logs: inference-perf's OpenTelemetry traces have fan-out and fan-in") {
  KVT_NEED_DATA(path, "otel-inference-perf/advanced/code_review_workflow.json");
  const Imported got = read("otel", path);
  REQUIRE(got.all.sessions.size() == 1);
  const auto& nodes = got.all.sessions[0].nodes();
  CHECK(std::any_of(nodes.begin(), nodes.end(), [](const v1::Node& node) { return node.deps_size() > 1; }));
}

TEST_CASE("logs: LiteLLM's payloads and spend logs") {
  const Folder dir;
  const Imported got = read(
      "litellm",
      dir.write(
          "l.jsonl",
          R"({"id":"1","trace_id":"t","call_type":"acompletion","startTime":1759813207.0,"endTime":1759813208.5,"completionStartTime":1759813207.25,"prompt_tokens":12,"completion_tokens":3,"status":"success"}
{"id":"2","session_id":"t","call_type":"completion","startTime":"2025-10-07T05:00:10.000Z","endTime":"2025-10-07T07:00:11+02:00","prompt_tokens":22,"completion_tokens":3,"status":"success"}
{"id":"3","call_type":"aembedding","startTime":1759813207.0,"prompt_tokens":12,"completion_tokens":0}
{"id":"4","call_type":"completion","startTime":1759813207.0,"prompt_tokens":12,"completion_tokens":0,"status":"failure"}
)"));
  REQUIRE(got.all.sessions.size() == 1);
  REQUIRE(got.all.sessions[0].nodes_size() == 2);
  CHECK(got.llm(0, 0).recorded_ttft_ns() == 250'000'000);
  CHECK(got.llm(0, 1).recorded_at_ns() == 3'000'000'000);
  CHECK(got.llm(0, 1).recorded_service_ns() == 1'000'000'000);
}

TEST_CASE("logs: Langfuse's observations, a page of the API or rows of an export") {
  const Folder dir;
  const Imported page = read(
      "langfuse",
      dir.write(
          "page.json",
          R"({"data":[{"id":"o1","traceId":"t","sessionId":"s","type":"GENERATION","startTime":"2026-03-02T09:00:00.250Z","endTime":"2026-03-02T09:00:02.250Z","completionStartTime":"2026-03-02T09:00:00.750Z","usageDetails":{"input":10,"input_cached_tokens":5,"output":4,"total":19},"input":[)" +
              kHello + R"(],"output":)" + kParis +
              R"(},{"id":"o2","traceId":"t","type":"SPAN","startTime":"2026-03-02T09:00:00Z"}],"meta":{}})"));
  CHECK(page.llm(0, 0).prompt_tokens() == 15);
  CHECK(page.llm(0, 0).output_tokens() == 4);
  CHECK(page.llm(0, 0).recorded_cache_read_tokens() == 5);
  CHECK(page.llm(0, 0).recorded_ttft_ns() == 500'000'000);
  const Imported rows = read(
      "langfuse",
      dir.write(
          "rows.jsonl",
          R"({"id":"o1","trace_id":"t","type":"GENERATION","start_time":"2026-03-02 09:00:00.250000","end_time":"2026-03-02 09:00:01.000000","usage_details":{"input":3,"output":2}}
)"));
  CHECK(rows.all.sessions.at(0).id() == "t");
}

TEST_CASE("logs: OpenAI requests and responses, chained by messages, lengths from usage or text") {
  const Folder dir;
  const std::string first =
      R"({"timestamp":"2026-03-02T09:00:00Z","latency_ms":500,"request":{"model":"m","messages":[)" + kHello +
      R"(]},"response":{"choices":[{"message":)" + kParis +
      R"(}],"usage":{"prompt_tokens":14,"completion_tokens":8}}})"
      "\n";
  const std::string second =
      R"({"timestamp":"2026-03-02T09:00:10Z","latency_ms":500,"request":{"model":"m","messages":[)" + kHello +
      "," + kParis + "," + kMore +
      R"(]},"response":{"choices":[{"message":{"role":"assistant","content":"It is on the Seine."}}]}})"
      "\n";
  const Imported got = read("openai", dir.write("log.jsonl", first + second));
  REQUIRE(got.all.sessions.size() == 1);
  CHECK(got.llm(0, 1).think_ns() == 9'500'000'000);
  CHECK(got.noted("lengths: of 1 of 2 requests estimated"));
  CHECK(marked(got.all.sessions[0].nodes(1), v1::LlmRequest::kOutputTokensFieldNumber) == v1::ESTIMATED);
  CHECK(shared_tokens(got.all.sessions[0], 0, 1) == 14);

  // Another user's request begins with the same message: the same content, another session.
  const Imported two = read("openai", dir.write("two.jsonl", first + first));
  REQUIRE(two.all.sessions.size() == 2);
  CHECK(two.all.sessions[0].spans(0).content_hash() == two.all.sessions[1].spans(0).content_hash());

  CHECK(contains(
      import_error("openai", dir.write("bare.jsonl", R"({"model":"m","timestamp":5,"choices":[]})")).text(),
      "bare.jsonl:1: has no prompt tokens and no text to estimate them from; log the response's"));
  CHECK(contains(
      import_error(
          "openai",
          dir.write(
              "times.jsonl",
              first + R"({"model":"m","messages":[{"role":"user","content":"x"}],"choices":[{"text":"y"}]})"))
          .text(),
      "times.jsonl:2: has no start time"));
}

TEST_CASE("logs: requests of a session that overlap run in parallel, and what ended last is waited for") {
  const Folder dir;
  const auto row = [](double start, double end, int input) {
    return fmt::format(
               R"({{"session_id":"s","input_toks":{},"output_toks":5,"queued_ts":{},"first_token_ts":{},"last_token_ts":{}}})",
               input, start, start, end) +
           "\n";
  };
  const Imported got =
      read("requests", dir.write("r.jsonl", row(0, 1, 10) + row(2, 5, 15) + row(2, 4, 15) + row(6, 7, 40)));
  REQUIRE(got.all.sessions.size() == 1);
  const v1::Session& session = got.all.sessions[0];
  CHECK(session.nodes(1).deps(0).node() == 0);
  CHECK(session.nodes(2).deps(0).node() == 0);
  REQUIRE(session.nodes(3).deps_size() == 2);
  CHECK(session.nodes(3).llm().think_ns() == 1'000'000'000);
  // Requests without a common predecessor are sessions of their own.
  const Imported apart = read("requests", dir.write("a.jsonl", row(0, 5, 10) + row(1, 4, 10)));
  CHECK(apart.all.sessions.size() == 2);
  CHECK(apart.all.sessions[1].id() == "s/2");
  CHECK(apart.noted("1 of them overlap and are sessions of their own"));
}

TEST_CASE("logs: hostile files end in one error") {
  const Folder dir;
  for (const char* const format : {"bench", "aiperf", "inference-perf", "guidellm", "otel", "litellm",
                                   "langfuse", "openai", "requests"}) {
    CAPTURE(format);
    for (const char* const text :
         {"", "[", "{}", "[1]", "null", "[[[[]]]]", "{\"data\":[1],\"benchmarks\":[1]}",
          "{\"input_lens\":[1],\"output_lens\":[1],\"start_times\":[-1e300],"
          "\"ttfts\":[1],\"itls\":[1]}"}) {
      CAPTURE(text);
      KeepAll all;
      const auto good = import_trace(format, dir.write("x.json", text), {}, &all);
      CHECK(!good.has_value());
    }
  }
}

TEST_CASE("logs: sums of nested lists replace them, without nesting into a tree") {
  const auto json = parse_compact_json(R"({"itls": [[0.5, 1], [], [2]], "other": [[1]]})",
                                       {.run_key = {}, .number_suffix = {}, .sum_key = "itls"});
  REQUIRE(json.has_value());
  CHECK(json->tree.dump() == R"({"itls":[1.5,0.0,2.0],"other":[[1]]})");
}
