// Request logs of other tools. What importers read from small ones: import_cases/logs.txt.

#include "tests/unit/traces/support.h"
#include "traces/format/compact_json.h"
#include "traces/importers/importers.h"

using namespace kvtwin;
using namespace kvtwin::testing;

TEST_CASE("logs: inference-perf's OpenTelemetry traces have fan-out and fan-in") {
  KVT_NEED_DATA(path, "otel-inference-perf/advanced/code_review_workflow.json");
  const KeepAll all = imported("auto", path);
  REQUIRE(all.sessions.size() == 1);
  for (const StepError& error : step_errors(all.sessions[0])) CHECK(error.ns == 0);
  const auto& nodes = all.sessions[0].nodes();
  CHECK(std::any_of(nodes.begin(), nodes.end(), [](const v1::Node& node) { return node.deps_size() > 1; }));
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
  const auto parsed = parse_compact_json(R"({"itls": [[0.5, 1], [], [2]], "other": [[1]]})",
                                         {.run_key = {}, .number_suffix = {}, .sum_key = "itls"});
  REQUIRE(parsed.has_value());
  CHECK(parsed->tree.dump() == R"({"itls":[1.5,0.0,2.0],"other":[[1]]})");
}
