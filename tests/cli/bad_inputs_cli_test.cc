// Bad input: each is refused with exit status 2 and a message that says where it is wrong, what with the
// value, and what would be right.

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/folder.h"

namespace fs = std::filesystem;
using kvtwin::testing::Folder;

namespace {

struct BadFile {
  const char* name;
  const char* text;
};
constexpr BadFile kFiles[] = {
    {"empty.jsonl", ""},
    {"text.txt", "hello world\n"},
    {"half.json", "{\"input_lens\": [1, 2"},
    {"array.json", "[1, 2, 3]\n"},
    {"number.jsonl", "17\n"},
    {"bench_lens.json",
     "{\"input_lens\":[10,20],\"output_lens\":[5],\"ttfts\":[0.1,0.2],\"itls\":[[0.1"
     "],[0.1]],\"start_times\":[0,1],\"errors\":[\"\",\"\"]}"},
    {"bench_neg.json",
     "{\"input_lens\":[-10],\"output_lens\":[2],\"ttfts\":[0.1],\"itls\":[[0.1]],\"st"
     "art_times\":[0],\"errors\":[\"\"]}"},
    {"bench_str.json",
     "{\"input_lens\":[\"ten\"],\"output_lens\":[2],\"ttfts\":[0.1],\"itls\":[[0.1]],\""
     "start_times\":[0],\"errors\":[\"\"]}"},
    {"bench_sum.json",
     "{\"mean_ttft_ms\": 12.5, \"request_throughput\": 3.0, \"completed\": 10, \"du"
     "ration\": 3.1, \"total_input_tokens\": 100}"},
    {"openai_bad.jsonl",
     "{\"ts\":1772442000,\"latency\":0.9,\"model\":\"m\",\"usage\":{\"prompt_tokens\":16"
     "}}\n"},
    {"openai_line2.jsonl",
     "{\"ts\":1772442000,\"latency\":0.9,\"session_id\":\"a\",\"model\":\"m\",\"usage\":{\""
     "prompt_tokens\":16,\"completion_tokens\":6}}\n{\"ts\":\n"},
    {"litellm.json",
     "[{\"id\":\"1\",\"call_type\":\"completion\",\"startTime\":\"soon\",\"endTime\":\"late"
     "r\",\"prompt_tokens\":3,\"completion_tokens\":4,\"model\":\"m\"}]"},
    {"otel.json",
     "{\"resourceSpans\":[{\"scopeSpans\":[{\"spans\":[{\"traceId\":\"1\",\"spanId\":\"2\""
     ",\"name\":\"chat m\",\"startTimeUnixNano\":\"x\",\"endTimeUnixNano\":\"2\",\"attrib"
     "utes\":[{\"key\":\"gen_ai.request.model\",\"value\":{\"stringValue\":\"m\"}},{\"ke"
     "y\":\"gen_ai.usage.input_tokens\",\"value\":{\"intValue\":\"5\"}},{\"key\":\"gen_a"
     "i.usage.output_tokens\",\"value\":{\"intValue\":\"5\"}}]}]}]}]}"},
    {"otel_none.json", "{\"resourceSpans\":[]}"},
    {"guide.json", "{\"benchmarks\":[]}"},
    {"aiperf.jsonl", "{\"metadata\":{\"request_start_ns\":5},\"metrics\":{}}\n"},
    {"langfuse.json", "[{\"id\":\"1\",\"type\":\"GENERATION\",\"startTime\":\"x\"}]"},
    {"infperf.json",
     "[{\"request\":\"{}\",\"response\":\"{}\",\"start_time\":1,\"end_time\":0,\"info\":{\""
     "input_tokens\":5,\"output_tokens\":3}}]"},
    {"moon_short.jsonl", "{\"timestamp\":0,\"input_length\":10000,\"output_length\":5,\"hash_ids\":[1]}\n"},
    {"moon_zero.jsonl", "{\"timestamp\":0,\"input_length\":0,\"output_length\":5,\"hash_ids\":[]}\n"},
    {"moon_neg.jsonl", "{\"timestamp\":-5,\"input_length\":10,\"output_length\":5}\n"},
    {"moon_big.jsonl", "{\"timestamp\":0,\"input_length\":5000000000,\"output_length\":5}\n"},
    {"moon_key.jsonl", "{\"timestamp\":0,\"input_length\":10}\n"},
    {"moon_ok.jsonl",
     "{\"timestamp\":0,\"input_length\":64,\"output_length\":4}\n{\"timestamp\":10,\"i"
     "nput_length\":64,\"output_length\":4}\n"},
    {"azure.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,ten,5\n"},
    {"azure_cols.csv", "TIMESTAMP,ContextTokens\n2023-11-16 18:17:03,10\n"},
    {"req.jsonl",
     "{\"request_id\": \"r0\", \"input_toks\": 100, \"output_toks\": 10, \"queued_ts\""
     ": 0.0, \"first_token_ts\": 0.05, \"last_token_ts\": 0.2}\n{\"request_id\": \"r"
     "1\", \"input_toks\": 101, \"output_toks\": 10, \"queued_ts\": 0.1, \"first_tok"
     "en_ts\": 0.15000000000000002, \"last_token_ts\": 0.30000000000000004}\n{\"r"
     "equest_id\": \"r2\", \"input_toks\": 102, \"output_toks\": 10, \"queued_ts\": 0"
     ".2, \"first_token_ts\": 0.25, \"last_token_ts\": 0.4}\n{\"request_id\": \"r3\","
     " \"input_toks\": 103, \"output_toks\": 10, \"queued_ts\": 0.3000000000000000"
     "4, \"first_token_ts\": 0.35000000000000003, \"last_token_ts\": 0.5}\n{\"requ"
     "est_id\": \"r4\", \"input_toks\": 104, \"output_toks\": 10, \"queued_ts\": 0.4,"
     " \"first_token_ts\": 0.45, \"last_token_ts\": 0.6000000000000001}\n{\"reques"
     "t_id\": \"r5\", \"input_toks\": 105, \"output_toks\": 10, \"queued_ts\": 0.5, \""
     "first_token_ts\": 0.55, \"last_token_ts\": 0.7}\n{\"request_id\": \"r6\", \"inp"
     "ut_toks\": 106, \"output_toks\": 10, \"queued_ts\": 0.6000000000000001, \"fi"
     "rst_token_ts\": 0.6500000000000001, \"last_token_ts\": 0.8}\n{\"request_id\""
     ": \"r7\", \"input_toks\": 107, \"output_toks\": 10, \"queued_ts\": 0.700000000"
     "0000001, \"first_token_ts\": 0.7500000000000001, \"last_token_ts\": 0.9000"
     "000000000001}\n{\"request_id\": \"r8\", \"input_toks\": 108, \"output_toks\": 1"
     "0, \"queued_ts\": 0.8, \"first_token_ts\": 0.8500000000000001, \"last_token"
     "_ts\": 1.0}\n{\"request_id\": \"r9\", \"input_toks\": 109, \"output_toks\": 10, "
     "\"queued_ts\": 0.9, \"first_token_ts\": 0.9500000000000001, \"last_token_ts"
     "\": 1.1}\n{\"request_id\": \"r10\", \"input_toks\": 110, \"output_toks\": 10, \"q"
     "ueued_ts\": 1.0, \"first_token_ts\": 1.05, \"last_token_ts\": 1.2}\n{\"reques"
     "t_id\": \"r11\", \"input_toks\": 111, \"output_toks\": 10, \"queued_ts\": 1.1, "
     "\"first_token_ts\": 1.1500000000000001, \"last_token_ts\": 1.3}\n{\"request_"
     "id\": \"r12\", \"input_toks\": 112, \"output_toks\": 10, \"queued_ts\": 1.20000"
     "00000000002, \"first_token_ts\": 1.2500000000000002, \"last_token_ts\": 1."
     "4000000000000001}\n{\"request_id\": \"r13\", \"input_toks\": 113, \"output_tok"
     "s\": 10, \"queued_ts\": 1.3, \"first_token_ts\": 1.35, \"last_token_ts\": 1.5"
     "}\n{\"request_id\": \"r14\", \"input_toks\": 114, \"output_toks\": 10, \"queued_"
     "ts\": 1.4000000000000001, \"first_token_ts\": 1.4500000000000002, \"last_t"
     "oken_ts\": 1.6}\n{\"request_id\": \"r15\", \"input_toks\": 115, \"output_toks\":"
     " 10, \"queued_ts\": 1.5, \"first_token_ts\": 1.55, \"last_token_ts\": 1.7}\n{"
     "\"request_id\": \"r16\", \"input_toks\": 116, \"output_toks\": 10, \"queued_ts\""
     ": 1.6, \"first_token_ts\": 1.6500000000000001, \"last_token_ts\": 1.8}\n{\"r"
     "equest_id\": \"r17\", \"input_toks\": 117, \"output_toks\": 10, \"queued_ts\": "
     "1.7000000000000002, \"first_token_ts\": 1.7500000000000002, \"last_token_"
     "ts\": 1.9000000000000001}\n{\"request_id\": \"r18\", \"input_toks\": 118, \"out"
     "put_toks\": 10, \"queued_ts\": 1.8, \"first_token_ts\": 1.85, \"last_token_t"
     "s\": 2.0}\n{\"request_id\": \"r19\", \"input_toks\": 119, \"output_toks\": 10, \""
     "queued_ts\": 1.9000000000000001, \"first_token_ts\": 1.9500000000000002, "
     "\"last_token_ts\": 2.1}\n"},
    {"req_order.jsonl",
     "{\"request_id\":\"a\",\"input_toks\":3,\"output_toks\":2,\"queued_ts\":5,\"first_"
     "token_ts\":4,\"last_token_ts\":6}\n"},
    {"req_missing.jsonl",
     "{\"request_id\":\"a\",\"input_toks\":3,\"queued_ts\":5,\"first_token_ts\":6,\"las"
     "t_token_ts\":7}\n"},
    {"config_none.json", "{\"hidden_size\": 10}"},
    {"config_list.json", "[]"},
    {"config_neg.json",
     "{\"model_type\":\"llama\",\"hidden_size\":-4096,\"num_hidden_layers\":2,\"num_a"
     "ttention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":64,\"voca"
     "b_size\":100}"},
    {"config_mla.json",
     "{\"model_type\":\"deepseek_v3\",\"hidden_size\":7168,\"num_hidden_layers\":61,"
     "\"num_attention_heads\":128,\"kv_lora_rank\":512}"},
    {"config_heads.json",
     "{\"model_type\":\"llama\",\"hidden_size\":4096,\"num_hidden_layers\":2,\"num_at"
     "tention_heads\":30,\"num_key_value_heads\":8,\"intermediate_size\":64,\"voca"
     "b_size\":100,\"max_position_embeddings\":128}"},
    {"dev_base.textproto",
     "# proto-file: traces/proto/model.proto\n# proto-message: kvtwin.v1.Devi"
     "ceSpec\nbase: \"h1000\"\nname: \"x\"\n"},
    {"dev_nan.textproto",
     "# proto-file: traces/proto/model.proto\n# proto-message: kvtwin.v1.Devi"
     "ceSpec\nbase: \"h100\"\nname: \"x\"\nhbm_bytes { value: -1 basis: DATASHEET s"
     "ource: \"s\" }\n"},
    {"dev_src.textproto",
     "# proto-file: traces/proto/model.proto\n# proto-message: kvtwin.v1.Devi"
     "ceSpec\nbase: \"h100\"\nname: \"x\"\nhbm_bytes { value: 80000000000 }\n"},
    {"dev_frac.textproto",
     "# proto-file: traces/proto/model.proto\n# proto-message: kvtwin.v1.Devi"
     "ceSpec\nbase: \"h100\"\nname: \"x\"\nread_fraction { value: 97.7 basis: MEASU"
     "RED source: \"s\" }\n"},
    {"node_dev.textproto",
     "# proto-file: traces/proto/model.proto\n# proto-message: kvtwin.v1.Node"
     "Spec\nbase: \"h100\"\nname: \"x\"\ndevice: \"nope.textproto\"\n"},
    {"node_gpus.textproto",
     "# proto-file: traces/proto/model.proto\n# proto-message: kvtwin.v1.Node"
     "Spec\nbase: \"h100\"\nname: \"x\"\ngpus: 0\n"},
    {"loop.textproto",
     "# proto-file: traces/proto/model.proto\n# proto-message: kvtwin.v1.Devi"
     "ceSpec\nbase: \"loop.textproto\"\nname: \"x\"\n"},
    {"notjson_plan/plan.json", "{\"load\":"},
    {"other_plan/plan.json", "{\"load\":\"x\"}"},
    {"plan_table/plan.json", "{\"load\":\"x\",\"need\":1,\"answer\":[],\"table\":[3],\"candidates\":[]}"},
    {"broken_run/run.binpb", "not a protobuf"},
    {"quality.csv", "policy,task\na,b\n"},
    {"validation.json", "{}"},
    {"bad.textproto",
     "model { name: \"llama-3.1-8b\" } hardware { node: \"h200\" } trace { path:"
     " \"moon_ok.jsonl\"\n"},
    {"word.textproto",
     "model { name: \"llama-3.1-8b\" } hardware { node: \"h200\" } trace { path:"
     " \"moon_ok.jsonl\" format: \"mooncake\" } limits { max_num_seqs: 4 }\n"},
    {"unit.textproto",
     "model { name: \"llama-3.1-8b\" } hardware { node: \"h200\" } trace { path:"
     " \"moon_ok.jsonl\" format: \"mooncake\" } memory { host_bytes: 5furlongs }"
     "\n"},
    {"latin.textproto",
     "name: \"caf\xe9"
     "\" model { name: \"llama-3.1-8b\" } hardware { node: \"h200\" } "
     "trace { path: \"moon_ok.jsonl\" format: \"mooncake\" }\n"},
    {"sweep_bad.sweep.textproto",
     "# proto-file: traces/proto/sweep.proto\n# proto-message: kvtwin.v1.Swee"
     "p\nscenario: \"coding_agents_small\"\nvary: \"limits.requests_max\"\n"},
};

struct BadInput {
  const char* words;
  const char* message;  // the beginning of its first line
};

// Runs every row in a folder with kFiles.
template <size_t N>
void refused(const BadInput (&rows)[N]) {
  const Folder folder;
  for (const BadFile& file : kFiles) {
    fs::create_directories(fs::path(folder.file(file.name)).parent_path());
    std::ofstream(folder.file(file.name)) << file.text;
  }
  const std::string err = folder.file("stderr");
  for (const BadInput& row : rows) {
    CAPTURE(std::string(row.words));
    const int status = std::system(fmt::format("cd '{}' && timeout 120 '{}' {} >/dev/null 2>'{}'",
                                               folder.path(), KVTWIN_PROGRAM, row.words, err)
                                       .c_str());
    const std::string said = Folder::read_any(err);
    CAPTURE(said);
    CHECK(WEXITSTATUS(status) == 2);
    CHECK(said.starts_with(row.message));
  }
}

}  // namespace

TEST_CASE("bad input: traces and logs") {
  const BadInput rows[] = {
      {"trace import empty.jsonl --out=t.kvtrace", "empty.jsonl: is empty; a trace or a log"},
      {"trace import text.txt --out=t.kvtrace",
       "text.txt: its first 65536 bytes are of no known format; name the format: --format=NA"
       "ME (kvtwin list formats)"},
      {"trace import half.json --out=t.kvtrace",
       "half.json:1: byte 21 syntax error while parsing array - unexpected end of input; exp"
       "ected ']'; JSON: one object a line, a list, or one object"},
      {"trace import array.json --out=t.kvtrace",
       "array.json: its first 65536 bytes are of no known format; name the format: --format="
       "NAME (kvtwin list formats)"},
      {"trace import number.jsonl --out=t.kvtrace",
       "number.jsonl: its first 65536 bytes are of no known format; name the format: --forma"
       "t=NAME (kvtwin list formats)"},
      {"trace import bench_lens.json --out=t.kvtrace",
       "bench_lens.json:1: output_lens has 1 values, input_lens 2; a result with single requ"
       "ests: vllm bench serve --save-result --save-detailed"},
      {"trace import bench_neg.json --out=t.kvtrace",
       "bench_neg.json:1: request 0: has no prompt tokens and no text to estimate them from;"
       " a result with single requests: vllm bench serve --save-result --s"},
      {"trace import bench_str.json --out=t.kvtrace",
       "bench_str.json:1: request 0: has no prompt tokens and no text to estimate them from;"
       " a result with single requests: vllm bench serve --save-result --s"},
      {"trace import bench_sum.json --out=t.kvtrace",
       "bench_sum.json:1: has no list \"input_lens\"; a result with single requests: vllm benc"
       "h serve --save-result --save-detailed"},
      {"trace import openai_bad.jsonl --out=t.kvtrace",
       "openai_bad.jsonl:1: has no output tokens and no text to estimate them from; log the "
       "response's \"usage\" (streams: stream_options.include_usage=true), o"},
      {"trace import openai_line2.jsonl --out=t.kvtrace",
       "openai_line2.jsonl:2: byte 7 syntax error while parsing value - unexpected end of in"
       "put; expected '[', '{', or a literal; JSON: one object a line, a l"},
      {"trace import litellm.json --out=t.kvtrace",
       "litellm.json: [0]: starts at \"soon\", which is no time; ISO 8601, or Unix time in s, "
       "ms, us or ns"},
      {"trace import otel.json --out=t.kvtrace",
       "otel.json:1: span 2: starts at \"x\", which is no time; ISO 8601, or Unix time in s, m"
       "s, us or ns"},
      {"trace import otel_none.json --out=t.kvtrace",
       "otel_none.json: none of its 0 spans is a model call; spans with gen_ai.operation.nam"
       "e=chat, or with gen_ai.usage.input_tokens"},
      {"trace import guide.json --out=t.kvtrace",
       "guide.json: its first 65536 bytes are of no known format; name the format: --format="
       "NAME (kvtwin list formats)"},
      {"trace import aiperf.jsonl --out=t.kvtrace",
       "aiperf.jsonl:1: has no prompt tokens and no text to estimate them from; AIPerf's rec"
       "ords have lengths unless the request failed; in inputs.json, --osl"},
      {"trace import langfuse.json --out=t.kvtrace",
       "langfuse.json: [0]: starts at \"x\", which is no time; ISO 8601, or Unix time in s, ms"
       ", us or ns"},
      {"trace import infperf.json --out=t.kvtrace", "infperf.json: [0]: ends 1000000000 ns before it starts"},
      {"trace import nowhere.json --out=t.kvtrace",
       "nowhere.json: does not exist; a trace file, directory or archive"},
      {"trace import bench bench_sum.json --out=t.kvtrace",
       "bench_sum.json:1: has no list \"input_lens\"; a result with single requests: vllm benc"
       "h serve --save-result --save-detailed"},
      {"trace import nonsense moon_ok.jsonl --out=t.kvtrace",
       "format: 'nonsense' is not a format that can be read; kvtwin, weka, mooncake, mooncak"
       "e-delta, agentic_mooncake, azure, llmservingsim, claude-code, tau-"},
      {"trace import moon_ok.jsonl --format=nonsense --out=t.kvtrace",
       "format: 'nonsense' is not a format that can be read; kvtwin, weka, mooncake, mooncak"
       "e-delta, agentic_mooncake, azure, llmservingsim, claude-code, tau-"},
      {"trace import moon_ok.jsonl", "kvtwin trace: --out is required; kvtwin trace --help"},
      {"trace import mooncake moon_neg.jsonl --out=t.kvtrace",
       "moon_neg.jsonl:1: \"timestamp\" is -5; a time, not negative, within 31 years"},
      {"trace import mooncake moon_big.jsonl --out=t.kvtrace",
       "moon_big.jsonl:1: \"input_length\" is 5000000000; below 2^32"},
      {"trace import mooncake moon_key.jsonl --out=t.kvtrace",
       "moon_key.jsonl:1: has no \"output_length\"; tokens of the output"},
      {"trace import azure azure.csv --out=t.kvtrace", "azure.csv:2: 'ten,5' is no pair of token counts"},
      {"trace import azure azure_cols.csv --out=t.kvtrace",
       "azure_cols.csv:1: starts with 'TIMESTAMP,ContextTokens'; TIMESTAMP,ContextTokens,Gen"
       "eratedTokens"},
      {"trace import azure moon_ok.jsonl --out=t.kvtrace",
       "moon_ok.jsonl:1: starts with '{\"timestamp\":0,\"input_length\":64,\"output_length\":4}'; "
       "TIMESTAMP,ContextTokens,GeneratedTokens"},
      {"trace import moon_ok.jsonl --out=nowhere.d/", "nowhere.d/: cannot be written: Not a directory"},
      {"trace inspect text.txt",
       "text.txt: its first 65536 bytes are of no known format; name the format: --format=NA"
       "ME (kvtwin list formats)"},
      {"trace cut moon_ok.jsonl", "kvtwin trace: --out is required; kvtwin trace --help"},
      {"trace export req.jsonl --out=x", "kvtwin trace: FILE is required; kvtwin trace --help"},
      {"import half.json --out=i",
       "half.json:1: is not a JSON object; the result of one benchmark, or one result per line"},
      {"import bench_sum.json --out=i",
       "bench_sum.json: has no list \"input_lens\"; save single requests too: vllm bench serve"
       " --save-detailed, sglang.bench_serving --output-details"},
      {"import moon_ok.jsonl --out=i",
       "moon_ok.jsonl: has no list \"input_lens\"; save single requests too: vllm bench serve "
       "--save-detailed, sglang.bench_serving --output-details"},
      {"import req.jsonl --out=i",
       "req.jsonl: is a request log already (input_toks, output_toks, times); kvtwin compare"
       " RUN req.jsonl reads it as it is; kvtwin trace import req.jsonl --"},
      {"import bench_lens.json", "kvtwin import: --out is required; kvtwin import --help"},
      {"import text.txt --out=i --format=vllm",
       "--format: there is no format \"vllm\"; one of: auto, bench, aiperf, prometheus, vidur"},
      {"import bench_neg.json --out=i", "bench_neg.json: input_lens of request 0 is -10; a number of tokens"},
      {"import bench_lens.json --out=i", "bench_lens.json: output_lens has 1 values, input_lens 2"},
  };
  refused(rows);
}

TEST_CASE("bad input: calibrate server and observe") {
  const BadInput rows[] = {
      {"calibrate server req.jsonl --out=s.textproto",
       "calibrate server: needs to know how the server was run; --model=NAME and --gpu=NODE "
       "(kvtwin list models, kvtwin list nodes), or --scenario=SCENARIO in"},
      {"calibrate server req.jsonl --model=llama-3.1-8b --gpu=h100 --out=s.txt",
       "--out=s.txt: does not end with .textproto; as in --out=server.textproto"},
      {"calibrate server req.jsonl --model=llama-9 --gpu=h100 --out=s.textproto",
       "s_scenario.textproto:2:3: llm: no llm is called \"llama-9\"; known: gemma-3-27b, glm-4"
       ".5, glm-4.5-air, gpt-oss-120b, gpt-oss-20b, llama-3.1-405b, llama-"},
      {"calibrate server req.jsonl --model=llama-3.1-8b --gpu=h1000 --out=s.textproto",
       "s_scenario.textproto:5:3: node: no node is called \"h1000\"; did you mean \"h100\" or \"h"
       "200\"?"},
      {"calibrate server req_order.jsonl --model=llama-3.1-8b --gpu=h100 --out=s.textproto",
       "req_order.jsonl:1: its times are out of order; queued_ts <= first_token_ts <= last_t"
       "oken_ts; a benchmark's result is imported first: kvtwin import req"},
      {"calibrate server req_missing.jsonl --model=llama-3.1-8b --gpu=h100 --out=s.textproto",
       "req_missing.jsonl:1: output_toks is missing; a number of tokens; a benchmark's resul"
       "t is imported first: kvtwin import req_missing.jsonl --out=DIR"},
      {"calibrate server empty.jsonl --model=llama-3.1-8b --gpu=h100 --out=s.textproto",
       "empty.jsonl: holds no requests; a benchmark's result is imported first: kvtwin impor"
       "t empty.jsonl --out=DIR"},
      {"calibrate server req.jsonl --model=llama-3.1-8b --gpu=h100 --fraction=2 --out=s.text"
       "proto",
       "--fraction: is 2; more than 0, less than 1"},
      {"calibrate server req.jsonl --model=llama-3.1-8b --gpu=h100 --first=3 --fraction=0.5 "
       "--out=s.textproto",
       "--fraction: and --first exclude each other; one of them"},
      {"calibrate server req.jsonl --model=llama-3.1-8b --gpu=h100 --first=20 --out=s.textproto",
       "req.jsonl: has 20 requests, of which 20 are to be fitted to; at least 5, and at leas"
       "t one more to score"},
      {"calibrate server req.jsonl --model=llama-3.1-8b --gpu=h100 --tp=3 --out=s.textproto",
       "s_scenario.textproto:9:3: tensor parallelism 3 cannot cut llama-3.1-8b's 32 query he"
       "ads; use a divisor of 32"},
      {"calibrate server req.jsonl --model=llama-3.1-8b --gpu=h100 --kv-tokens=many --out=s."
       "textproto",
       "--kv-tokens=many: is not a whole number from 0 to 18446744073709551615"},
      {"calibrate server bench_lens.json --model=llama-3.1-8b --gpu=h100 --out=s.textproto",
       "bench_lens.json:1: input_toks is missing; a number of tokens; a benchmark's result i"
       "s imported first: kvtwin import bench_lens.json --out=DIR"},
      {"calibrate server nowhere --model=llama-3.1-8b --gpu=h100 --out=s.textproto",
       "nowhere: cannot be opened; check the name and its permissions"},
      {"observe http://localhost:1", "kvtwin observe: --trace is required; kvtwin observe --help"},
      {"observe localhost --trace=text.txt --out=o",
       "text.txt: its first 65536 bytes are of no known format; name the format: --format=NA"
       "ME (kvtwin list formats)"},
      {"observe http://localhost:1 --trace=nowhere --out=o",
       "nowhere: does not exist; a trace file, directory or archive"},
      {"observe http://localhost:1 --trace=moon_ok.jsonl --out=o --speed=0",
       "kvtwin observe: no option \"--speed\"; did you mean \"--seed\"?"},
  };
  refused(rows);
}

TEST_CASE("bad input: plan") {
  const BadInput rows[] = {
      {"plan coding_agents_small --load=replay.population=1..4 --need=2 --set=replay.arrival"
       "s=fixed_population --allow-roofline --out=p --slo=ttft_p98'<'2s",
       "--slo=ttft_p98<2s: there is no latency \"ttft_p98\"; did you mean \"ttft\"?; other figur"
       "es take a plain number"},
      {"plan coding_agents_small --load=replay.population=1..4 --need=2 --set=replay.arrival"
       "s=fixed_population --allow-roofline --out=p --slo=ttft_p99",
       "--slo=ttft_p99: compares nothing; as in ttft_p99<2s or goodput>=95%"},
      {"plan coding_agents_small --load=replay.population=1..4 --need=2 --set=replay.arrival"
       "s=fixed_population --allow-roofline --out=p --slo=ttft_p99'<'fast",
       "--slo=ttft_p99<fast: \"fast\" is not a number; as in ttft_p99<2s"},
      {"plan coding_agents_small --load=replay.population=1..4 --need=2 --set=replay.arrival"
       "s=fixed_population --allow-roofline --out=p --slo=foo'<'2s",
       "--slo=foo<2s: there is no latency \"foo\"; one of: ttft, ttft_from_queued, tpot, itl, "
       "e2e, session, session_served; other figures take a plain number"},
      {"plan coding_agents_small --load=replay.population=1..4 --need=2 --set=replay.arrival"
       "s=fixed_population --allow-roofline --out=p --slo=ttft_p99'<'-2s",
       "--slo=ttft_p99<-2s: the limit is -2; more than 0"},
      {"plan coding_agents_small --load=replay.population=1..4 --need=2 --set=replay.arrival"
       "s=fixed_population --allow-roofline --out=p --slo=ttft_p99'<'2s --vary=limits.reques"
       "ts_max",
       "--vary: \"limits.requests_max\" is not FIELD=VALUES; as in --vary=limits.requests_max="
       "16..256*2"},
      {"plan coding_agents_small --load=replay.population=1..4 --need=2 --set=replay.arrival"
       "s=fixed_population --allow-roofline --out=p --slo=ttft_p99'<'2s --vary=limits.nope=1"
       ",2",
       "--set=limits.nope=1: no field \"nope\" in Limits; known are: preset, requests_max, ste"
       "p_tokens_max, chunk_tokens_max, steps_in_flight_max, batch_order, "},
      {"plan coding_agents_small --load=replay.population=1..4 --need=2 --set=replay.arrival"
       "s=fixed_population --allow-roofline --out=p --slo=ttft_p99'<'2s --seeds=0",
       "--seeds: is 0; 1 at least"},
      {"plan coding_agents_small --load=replay.population=1..4 --need=2 --set=replay.arrival"
       "s=fixed_population --allow-roofline --out=p --slo=ttft_p99'<'2s --loss=int4",
       "--loss=int4: is not FIELD=VALUE:PERCENT; as in --loss=policies.precision=int4:0.4"},
      {"plan coding_agents_small --load=replay.population=1..4 --need=2 --set=replay.arrival"
       "s=fixed_population --allow-roofline --out=p --slo=ttft_p99'<'2s --quality=quality.cs"
       "v",
       "quality.csv:1: has no columns policy, budget, task and accuracy; give the quality.cs"
       "v of kvtwin evaluate --out"},
      {"plan coding_agents_small --load=replay.population=1..4 --need=2 --set=replay.arrival"
       "s=fixed_population --allow-roofline --out=p --slo=ttft_p99'<'2s --format=csv",
       "--format: a plan cannot be written as CSV; table, json or jsonl"},
      {"plan coding_agents_small --slo=ttft_p99'<'2s --load=replay.population=4..1 --need=2 "
       "--out=p",
       "--load=replay.population=4..1: the load is from 4 to 1; give an ascending range above 0"},
      {"plan coding_agents_small --slo=ttft_p99'<'2s --load=replay.population --need=2 --out=p",
       "--load=replay.population: is not FIELD=LOW..HIGH; as in --load=replay.population=1..1000"},
      {"plan coding_agents_small --slo=ttft_p99'<'2s --load=replay.population=1..4 --need=9 "
       "--set=replay.arrivals=fixed_population --out=p",
       "--need: 9 is outside the load's 1 to 4; a load in this range, or a wider --load"},
      {"plan coding_agents_small --slo=ttft_p99'<'2s --load=replay.population=1..4 --need=2 "
       "--out=p",
       "--load=replay.population: replay.population is not read where replay.arrivals is rec"
       "orded; it is read with --set=replay.arrivals=fixed_population"},
  };
  refused(rows);
}

TEST_CASE("bad input: sweep") {
  const BadInput rows[] = {
      {"sweep coding_agents_small --vary=limits.requests_max --out=w",
       "--vary: \"limits.requests_max\" is not FIELD=VALUES; as in --vary=limits.requests_max="
       "16..256*2"},
      {"sweep coding_agents_small --vary=limits.requests_max=4..1 --out=w",
       "--vary=limits.requests_max: the range 4..1 ends before it starts; give the smaller o"
       "ne first"},
      {"sweep coding_agents_small --vary=limits.requests_max=4,4 --out=w",
       "--vary=limits.requests_max: 4 is there twice; each value once"},
      {"sweep coding_agents_small --vary=limits.requests_maxx=4,8 --out=w",
       "coding_agents_small: the scenario is invalid at every point: --set=limits.requests_m"
       "axx=4: no field \"requests_maxx\" in Limits; did you mean \"requests_"},
      {"sweep coding_agents_small --out=w --vary=limits.requests_max=4 --halve=nope --rungs=1,2",
       "--halve: \"nope\" is not METRIC:min or METRIC:max; as in ttft_p99_ms:min"},
      {"sweep coding_agents_small --out=w --vary=limits.requests_max=4,8 --shard=3/2",
       "--shard: \"3/2\" is not a shard; give INDEX/COUNT, INDEX from 0, as in 0/4"},
      {"sweep coding_agents_small --out=w --vary=limits.requests_max=4,8 --launcher=k8s",
       "--launcher: there is no launcher \"k8s\"; local or slurm; --shard for other schedulers"},
      {"sweep coding_agents_small --out=w --vary=limits.requests_max=4,8 --samples=3 --sampl"
       "er=dice",
       "--sampler: there is no sampler \"dice\"; sobol or random"},
      {"sweep sweep_bad.sweep.textproto --out=w",
       "--vary: \"limits.requests_max\" is not FIELD=VALUES; as in --vary=limits.requests_max="
       "16..256*2"},
      {"sweep coding_agents_small --out=w --vary=limits.requests_max=4,8 --columns=latency_p42",
       "--columns: there is no metric \"latency_p42\"; kvtwin list metrics prints all"},
  };
  refused(rows);
}

TEST_CASE("bad input: units, fields and devices") {
  const BadInput rows[] = {
      {"run coding_agents_small --set=memory.host_bytes=5GBs",
       "--set=memory.host_bytes=5GBs: \"5GBs\" is not a value of memory.host_bytes: it has no "
       "unit \"GBs\"; it takes a whole number of at least 0; units: B, kB, M"},
      {"run coding_agents_small --set=memory.host_bytes=-5GB",
       "--set=memory.host_bytes=-5GB: \"-5GB\" is not a value of memory.host_bytes; it takes a"
       " whole number of at least 0; units: B, kB, MB, GB, TB, KiB, MiB, G"},
      {"run coding_agents_small --set=memory.gpu_fraction=190%",
       "--set=memory.gpu_fraction=190%: gpu_fraction is 1.9; from 0.01 to 1"},
      {"run coding_agents_small --set=replay.think_cap_s=3GB",
       "--set=replay.think_cap_s=3GB: \"3GB\" is not a value of replay.think_cap_s: it has no "
       "unit \"GB\"; it takes a number; units: ns, us, ms, s, min, h, d"},
      {"run coding_agents_small --set=limits.requests_max=1.5",
       "--set=limits.requests_max=1.5: \"1.5\" is not a value of limits.requests_max: it is no"
       "t a whole number; it takes a whole number from 0 to 4294967295; un"},
      {"run coding_agents_small --set=limits.requests_max=5ms",
       "--set=limits.requests_max=5ms: \"5ms\" is not a value of limits.requests_max: it has n"
       "o unit \"ms\"; it takes a whole number from 0 to 4294967295; units: "},
      {"run coding_agents_small --set=cost.front_end_request_ns=-1",
       "--set=cost.front_end_request_ns=-1: front_end_request_ns is -1; from 0 to 1000000000"},
      {"run coding_agents_small --set=cost.front_end_token_ns=nan",
       "--set=cost.front_end_token_ns=nan: front_end_token_ns is nan; from 0 to 1000000"},
      {"run coding_agents_small --set=memory.host_bytes=1e400",
       "--set=memory.host_bytes=1e400: \"1e400\" is not a value of memory.host_bytes: it is to"
       "o large; it takes a whole number of at least 0; units: B, kB, MB, "},
      {"run coding_agents_small --timeline=0..60parsecs",
       "--timeline: \"0..60parsecs\" is not an interval; write seconds, or times with a unit, "
       "as in --timeline=10..12.5 or --timeline=500ms..2min"},
      {"run coding_agents_small --timeline=60s..0s",
       "--timeline: \"60s..0s\" is not an interval; write seconds, or times with a unit, as in"
       " --timeline=10..12.5 or --timeline=500ms..2min"},
      {"run coding_agents_small --set=memory.gpu_fraction=",
       "--set=memory.gpu_fraction=: \"\" is not a value of memory.gpu_fraction; it takes a num"
       "ber; units: %"},
      {"run coding_agents_small --set==3",
       "--set==3: no field \"\" in Scenario; known are: name, description, seed, model, hardwa"
       "re, engines, memory, limits, policies, trace, replay, cost, simula"},
      {"run coding_agents_small --set=memory.capacity=trtllm",
       "--set=memory.capacity=trtllm: capacity is \"trtllm\"; one of: vllm, vllm_0.20, sglang"},
      {"run unit.textproto",
       "unit.textproto:1:118: \"5furlongs\" is not a value of host_bytes: it has no unit \"furl"
       "ongs\"; it takes a whole number of at least 0; units: B, kB, MB, GB"},
      {"run word.textproto",
       "word.textproto:1:118: no field \"max_num_seqs\" in Limits; max_num_seqs (vLLM) is limi"
       "ts.requests_max here"},
      {"run bad.textproto",
       "bad.textproto:2:1: the file ends within a message; name { ... }: each { has its }"},
      {"run latin.textproto", "latin.textproto:1: has a character that is not UTF-8; save the file as UTF-8"},
      {"run coding_agents_small --set=model.weights=fp5",
       "--set=model.weights=fp5: weights is \"fp5\"; did you mean \"fp8\"?"},
      {"run coding_agents_small --set=cost.profile=text.txt",
       "--set=cost.profile=text.txt: text.txt: is no profile; a folder of kernel tables, or "
       "a .textproto of kvtwin calibrate device or calibrate server"},
      {"run coding_agents_small --set=limits.preset=vllm_v2",
       "--set=limits.preset=vllm_v2: preset is \"vllm_v2\"; did you mean \"vllm_v1\"?"},
      {"run coding_agents_small --set=hardware.node=node_dev.textproto",
       "--set=hardware.node=node_dev.textproto: nope.textproto: cannot be opened; check the "
       "name and its permissions"},
      {"run coding_agents_small --set=hardware.node=text.txt",
       "--set=hardware.node=text.txt: node: no node is called \"text.txt\"; known: a100-40gb, "
       "a100-40gb-x8, a100-80gb, a100-80gb-x4, a100-80gb-x8, b200, b200-x8"},
      {"device check dev_base.textproto",
       "dev_base.textproto:3:1: base: no device is called \"h1000\"; did you mean \"h100\" or \"h"
       "200\"?"},
      {"device check dev_nan.textproto",
       "dev_nan.textproto: hbm_bytes is -1; 1000000 to 100000000000000 is right"},
      {"device check dev_src.textproto",
       "dev_src.textproto: hbm_bytes has no basis; DATASHEET, MEASURED, DERIVED or ASSUMED"},
      {"device check dev_frac.textproto", "dev_frac.textproto: read_fraction is 97.7; 0.01 to 1 is right"},
      {"device check loop.textproto",
       "loop.textproto:3:1: the bases form a cycle: loop.textproto -> loop.textproto; a file"
       " that states every figure has no base"},
      {"device check nowhere.textproto",
       "nowhere.textproto: cannot be opened; check the name and its permissions"},
      {"device new ../x --base=h100",
       "NAME: \"../x\" is no name; letters, digits, '.', '_' and '-', as in my-model-8b; --out"
       " is the path of the file"},
      {"device new x --base=h1000",
       "device: no device is called \"h1000\"; did you mean \"h100\" or \"h200\"?"},
      {"device new x", "kvtwin device: --base is required; kvtwin device --help"},
      {"model import config_none.json --name=m",
       "config_none.json: model_type \"\" is not understood; llama, mistral, qwen2, qwen2_vl, "
       "qwen3, qwen3_vl_text, qwen3_moe, qwen3_vl_moe_text, gpt_oss, mixtr"},
      {"model import config_list.json --name=m",
       "config_list.json: is no JSON object; give the config.json of a Hugging Face model"},
      {"model import config_neg.json --name=m",
       "config_neg.json: \"hidden_size\" is -4096; a whole number below 2^32 is right"},
      {"model import config_mla.json --name=m",
       "config_mla.json: has multi-head latent attention (512 values per token and layer), n"
       "ot modelled yet; models whose layers all store K and V of the same"},
      {"model import config_heads.json --name=m",
       "config_heads.json: 30 query heads are no multiple of 8 KV heads; kv_heads must divid"
       "e query_heads"},
      {"model import half.json --name=m",
       "half.json: is not JSON; give the config.json of a Hugging Face model"},
      {"model import config_neg.json --name=a/b",
       "--name: \"a/b\" is no name; letters, digits, '.', '_' and '-', as in my-model-8b; --ou"
       "t is the path of the file"},
      {"model import config_none.json --as=lama --name=m",
       "--as: \"lama\" is not a known family; llama, mistral, qwen2, qwen2_vl, qwen3, qwen3_vl"
       "_text, qwen3_moe, qwen3_vl_moe_text, gpt_oss, mixtral, phi3, glm4_"},
      {"model show nope",
       "llm: no llm is called \"nope\"; known: gemma-3-27b, glm-4.5, glm-4.5-air, gpt-oss-120b"
       ", gpt-oss-20b, llama-3.1-405b, llama-3.1-70b, llama-3.1-8b, llama-"},
      {"run coding_agents_small --set=engines.tensor_parallel=3",
       "--set=engines.tensor_parallel=3: an engine of 3 GPUs does not fit into one node: h20"
       "0 has 1; --set=hardware.gpus=3, or another node (kvtwin list nodes"},
  };
  refused(rows);
}

TEST_CASE("bad input: comparisons, reports and lists") {
  const BadInput rows[] = {
      {"compare broken_run req.jsonl",
       "broken_run/requests.jsonl: cannot be opened; check the name and its permissions"},
      {"compare req.jsonl broken_run",
       "req.jsonl: is no folder of a run, and the second argument is one; kvtwin compare bro"
       "ken_run req.jsonl"},
      {"compare broken_run broken_run", "broken_run/run.binpb: is not a run result; run the scenario again"},
      {"compare req.jsonl nowhere", "nowhere: cannot be opened; check the name and its permissions"},
      {"compare req.jsonl req_order.jsonl",
       "req_order.jsonl:1: its times are out of order; queued_ts <= first_token_ts <= last_t"
       "oken_ts"},
      {"compare req.jsonl req.jsonl --skip=20", "--skip: 20 of 20 requests leave nothing to compare"},
      {"compare req.jsonl req.jsonl --limit=ttft",
       "--limit=ttft: \"\" is not a percentage; write --limit=ttft.mean=1.0"},
      {"compare req.jsonl req.jsonl --limit=ttft.p42=3",
       "--limit=ttft.p42=3: no metric \"ttft.p42\"; did you mean \"ttft.p90\" or \"ttft.p95\" or \""
       "ttft.p99\"?"},
      {"compare req.jsonl req.jsonl --limit=ttft.p99=-3",
       "--limit=ttft.p99=-3: \"-3\" is not a percentage; write --limit=ttft.mean=1.0"},
      {"compare req.jsonl req.jsonl --format=xml",
       "--format: there is no format \"xml\"; table, json, jsonl or csv"},
      {"compare req.jsonl half.json", "half.json:1: is not JSON; one object per line"},
      {"report notjson_plan --out=r.html",
       "notjson_plan/plan.json: was not written by this version of kvtwin; kvtwin plan --out"
       " writes it"},
      {"report other_plan --out=r.html",
       "other_plan/plan.json: was not written by this version of kvtwin; kvtwin plan --out w"
       "rites it"},
      {"report plan_table --out=r.html",
       "plan_table/plan.json: was not written by this version of kvtwin; kvtwin plan --out w"
       "rites it"},
      {"report broken_run --out=r.html", "broken_run/run.binpb: is not a run result; run the scenario again"},
      {"report nowhere --out=r.html",
       "nowhere: holds no run (run.binpb), sweep (index.sqlite), plan.json, validation.json,"
       " quality.json or quality.csv; a folder that kvtwin run, sweep, pla"},
      {"report other_plan --out=r.pdf", "--out: \"r.pdf\" is not a page; a name in .html or .md"},
      {"report quality.csv --out=r.html",
       "quality.csv:1: has no column budget; give the quality.csv of kvtwin evaluate --out"},
      {"report validation.json --out=r.html",
       "validation.json: was not written by this version of kvtwin; kvtwin validate --out wr"
       "ites it"},
      {"export aiperf nowhere --out=x",
       "nowhere/run.binpb: cannot be opened; check the name and its permissions"},
      {"export grafana broken_run --out=x",
       "kvtwin export: there is no format \"grafana\"; aiperf; traces are exported by kvtwin t"
       "race export"},
      {"list wrods", "kvtwin list: there is no list of \"wrods\"; did you mean \"words\"?"},
  };
  refused(rows);
}
