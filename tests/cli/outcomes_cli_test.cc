// Outcomes on the command line: recorded and replayed; retrieval together with dropped KV entries.

#include "tests/cli/program.h"

using namespace kvtwin::testing;

TEST_CASE("recorded outcomes: a run with another's outcomes makes the same decisions at the same times") {
  struct Row {
    const char* method;
    const char* other;     // the setting that changes the draws, if they were used
    const char* recorded;  // the outcomes to record
  };
  const Row rows[] = {
      {"freekv", "simulation.retrieval.miss_rate=0.7", "simulation.retrieval.outcomes=recorded"},
      {"tangram_released", "simulation.retained=profile", "simulation.retained=recorded"},
      {"adakv", "seed=9", "simulation.retained=recorded"},
      {"intentkv", "seed=9", "simulation.retained=recorded"}};
  for (const Row& row : rows) {
    CAPTURE(row.method);
    const Folder folder;
    const std::string few = "--set=replay.sessions_max=2",
                      run = "simulation.recorded_run=" + folder.file("a");
    const auto out = [&](const char* name) { return "--out=" + folder.file(name); };
    const std::string other = std::string("--set=") + row.other;
    succeeded(run_kvtwin(folder, method_words(row.method, {"--record", few, other, out("a")})));
    const Outcome repeated =
        succeeded(run_kvtwin(folder, method_words(row.method, {"--record", few, out("b"), "--set=" + run,
                                                               std::string("--set=") + row.recorded})));
    CHECK(repeated.printed("recorded"));
    CHECK(!repeated.printed("the others fixed"));
    CHECK(folder.read("a/requests.csv") == folder.read("b/requests.csv"));
    CHECK(folder.read("a/outcomes.binpb") == folder.read("b/outcomes.binpb"));
    // Requests that the record lacks are reported.
    const Outcome more = succeeded(
        run_kvtwin(folder, method_words(row.method, {"--no-write", "--set=replay.sessions_max=3",
                                                     "--set=" + run, std::string("--set=") + row.recorded})));
    CHECK(more.printed("the others fixed"));
    // The record does not depend on coalescing.
    succeeded(run_kvtwin(folder, method_words(row.method, {"--record", few, other, out("c"),
                                                           "--set=simulation.coalesce=false"})));
    CHECK(folder.read("a/outcomes.binpb") == folder.read("c/outcomes.binpb"));
  }
}

TEST_CASE("recorded outcomes: a record of other head groups is refused") {
  const Folder folder;
  succeeded(run_kvtwin(folder, method_words("adakv", {"--record", "--set=replay.sessions_max=1",
                                                      "--out=" + folder.file("adakv")})));
  check_refused(run_kvtwin(folder, method_words("tangram_released",
                                                {"--no-write", "--set=simulation.retained=recorded",
                                                 "--set=simulation.recorded_run=" + folder.file("adakv")})),
                "head groups");
}

TEST_CASE("retrieval cli: a step selects among the retained entries, and a smaller budget is faster") {
  const Folder folder;
  const std::string few = "--set=replay.sessions_max=2", quest = "--set=policies.retrieval=quest";
  for (const std::string method : {"tangram_released", "intentkv", "composite"}) {
    CAPTURE(method);
    const auto itl = [&](const Words& sets) {
      const Words more = Words{"--no-write", "--format=jsonl", few} + sets;
      const Outcome outcome = succeeded(run_kvtwin(folder, method_words(method, more)));
      return json_number(outcome.out, "itl_p50_ms");
    };
    const std::string small = "--set=policies.retrieval_options.budget_tokens=1088",
                      more = "--set=policies.retrieval_options.budget_tokens=65536";
    // The composite packs and drops, so little is left to read, and selection costs kernels.
    if (method != "composite") {
      CHECK(itl({quest, small}) < itl({}));
      CHECK(itl({quest, small}) < itl({quest, more}));
    }
    const auto out = [&](const char* name) { return "--out=" + folder.file(method + name); };
    succeeded(run_kvtwin(folder, method_words(method, {"--record", few, quest, out("a")})));
    succeeded(run_kvtwin(
        folder, method_words(method, {"--record", few, quest, "--set=simulation.coalesce=false", out("b")})));
    CHECK(folder.read(method + "a/log.binpb") == folder.read(method + "b/log.binpb"));
    CHECK(folder.read(method + "a/requests.csv") == folder.read(method + "b/requests.csv"));
    succeeded(run_kvtwin(folder, {"replay", folder.file(method + "a"), "--quiet"}));
  }
}

TEST_CASE("I: reads obey their definitions: raw at least effective, and equal where nothing is dropped") {
  const Folder folder;
  const auto reads = [&](const char* method, const std::string& set) {
    const Outcome outcome =
        succeeded(run_kvtwin(folder, method_words(method, {"--no-write", "--format=jsonl",
                                                           "--set=replay.sessions_max=3", "--set=" + set})));
    const double raw = json_number(outcome.out, "reads_raw"),
                 effective = json_number(outcome.out, "reads_effective");
    const double peak = json_number(outcome.out, "reads_peak_raw"),
                 peak_effective = json_number(outcome.out, "reads_peak_effective");
    CHECK(raw >= effective);
    CHECK(peak >= peak_effective);
    CHECK(effective > 0);
    CHECK(raw >= peak);
    return std::vector<double>{raw, effective, peak, peak_effective};
  };
  const auto full = reads("dense", "seed=1");
  CHECK(full[0] == full[1]);
  CHECK(full[2] == full[3]);
  const auto pruned = reads("intentkv", "seed=1"),
             small = reads("intentkv", "policies.budget_options.kv_entries=2048");
  CHECK(pruned[1] < pruned[0]);
  CHECK(pruned[0] == small[0]);  // raw reads do not depend on dropped entries
  CHECK(pruned[2] == small[2]);
  CHECK(small[1] < pruned[1]);
  CHECK(small[3] < pruned[3]);
  // B limits the compressible history; the prefix and the request's own decoded tokens are extra.
  CHECK(small[3] >= 2048);
}

TEST_CASE("group fragmentation: none with one head per group, most with adjacent groups") {
  const Folder folder;
  const auto run = [&](const char* heads, const char* clustering) {
    const Outcome outcome = succeeded(run_kvtwin(
        folder,
        method_words("tangram", {"--no-write", "--format=jsonl", "--set=replay.sessions_max=2",
                                 std::string("--set=policies.layout_options.heads_per_group=") + heads,
                                 std::string("--set=policies.layout_options.clustering=") + clustering})));
    return std::pair{json_number(outcome.out, "fragmentation_group"), json_number(outcome.out, "reclaimed")};
  };
  const auto alone = run("1", "across_layers"), across = run("4", "across_layers"),
             layer = run("4", "per_layer"), adjacent = run("4", "adjacent");
  CHECK(alone.first == 0);
  CHECK(across.first > 0);
  CHECK(layer.first > across.first);
  CHECK(adjacent.first > layer.first);
  CHECK(alone.second > across.second);
  CHECK(across.second > layer.second);
  CHECK(layer.second > adjacent.second);
  // docs/design/methods/tangram.md#clustering, B = mu + 2 sigma: of the entries in groups of four, heads
  // alone need .179 of .186 across layers, .371 per layer, .477 adjacent; forced and decoded tokens make the
  // difference smaller.
  CHECK(across.first < 1 - 0.179 / 0.186 + 0.005);
  CHECK(layer.first < 1 - 0.179 / 0.371);
  CHECK(adjacent.first < 1 - 0.179 / 0.477);
}

TEST_CASE("partition: its price orders the policies, and only where heads differ") {
  const Folder folder;
  const auto slowdown = [&](const char* method, const std::string& partition) {
    const Outcome outcome = succeeded(run_kvtwin(
        folder, method_words(method, {"--no-write", "--format=jsonl", "--set=replay.sessions_max=2",
                                      "--set=policies.partition=" + partition})));
    return json_number(outcome.out, "attention_slowdown");
  };
  const double even = slowdown("tangram", "stream_k"), aot = slowdown("tangram", "aot"),
               uniform = slowdown("tangram", "uniform");
  CHECK(even >= 1);
  CHECK(even < 1.2);  // one request's few thousand KV entries per layer are few tiles for 216 blocks
  CHECK(aot < uniform);
  CHECK(uniform > 1.3);
  CHECK(slowdown("snapkv", "uniform") == -1);  // all heads retain the same number: no price
}
