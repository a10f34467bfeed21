// Retrieval on the command line: the scenarios of scenarios/methods, their logs, their errors.

#include "tests/cli/program.h"

using namespace kvtwin::testing;

namespace {

constexpr const char* kNames[] = {"quest", "arkvale", "shadowkv", "infinigen", "freekv"};

}  // namespace

TEST_CASE(
    "retrieval cli: every method runs, its log replays to its digest, and coalescing changes no byte of it") {
  for (const std::string method : kNames) {
    CAPTURE(method);
    const Folder folder;
    const auto out = [&](const char* name) { return "--out=" + folder.file(name); };
    const std::string few = "--set=replay.sessions_max=2";
    succeeded(run_kvtwin(folder, method_words(method, {"--record", few, out("a")})));
    succeeded(run_kvtwin(
        folder, method_words(method, {"--record", few, out("b"), "--set=simulation.coalesce=false"})));
    CHECK(folder.read("a/log.binpb") == folder.read("b/log.binpb"));
    CHECK(folder.read("a/requests.csv") == folder.read("b/requests.csv"));
    const Outcome replayed = succeeded(run_kvtwin(folder, {"replay", folder.file("a"), "--format=jsonl"}));
    CHECK(replayed.printed("\"same\":true"));
  }
}

TEST_CASE("retrieval cli: the summary reports recalls, and the source of their outcomes") {
  const Folder folder;
  const Outcome free = succeeded(run_kvtwin(folder, method_words("freekv", {"--no-write"})));
  CHECK(free.printed("outcomes fixed"));
  CHECK(free.printed("GB recalled"));
  const Outcome profile = run_kvtwin(
      folder, method_words("freekv",
                           {"--no-write", "--format=jsonl", "--set=simulation.retrieval.outcomes=profile"}));
  CHECK(profile.printed("\"outcomes\":\"profile\""));
  const Outcome dense = run_kvtwin(folder, method_words("dense", {"--no-write", "--format=jsonl"}));
  CHECK(!dense.printed("outcomes"));
}

TEST_CASE("retrieval cli: steps get slower with misses and corrections, and no page moves without them") {
  const Folder folder;
  const auto itl = [&](const char* method, const Words& sets) {
    Words more = {"--no-write", "--format=jsonl", "--set=replay.sessions_max=1"};
    for (const std::string& set : sets) more.push_back("--set=" + set);
    const Outcome outcome = succeeded(run_kvtwin(folder, method_words(method, more)));
    return json_number(outcome.out, "itl_p50_ms");
  };
  const std::string miss = "simulation.retrieval.miss_rate=",
                    corrected = "simulation.retrieval.correction_rate=";
  for (const char* method : {"arkvale", "shadowkv", "freekv"}) {
    CHECK(itl(method, {miss + "0.5"}) > itl(method, {miss + "0.1"}));
    CHECK(itl(method, {miss + "0.1"}) > itl(method, {miss + "0"}));
  }
  CHECK(itl("freekv", {miss + "0.3", corrected + "1"}) > itl("freekv", {miss + "0.3", corrected + "0"}));
  // Above tau 1 speculation gains nothing; without it each step takes the same time except for the check.
  const double always = itl("freekv", {miss + "0.3", "policies.retrieval_options.tau=1.5"});
  const double blocking = itl("freekv", {miss + "0.3", "policies.retrieval_options.speculation=false"});
  CHECK(always == doctest::Approx(blocking).epsilon(0.02));
  CHECK(itl("infinigen", {miss + "0"}) == itl("infinigen", {miss + "1"}));  // it retains no page
}

TEST_CASE("retrieval cli: one GPU has exclusive links, and both fidelities agree") {
  const Folder folder;
  const auto end = [&](const char* fidelity) {
    const Outcome outcome =
        run_kvtwin(folder, method_words("freekv", {"--no-write", "--format=jsonl",
                                                   std::string("--set=simulation.fidelity=") + fidelity}));
    return std::pair(json_number(outcome.out, "elapsed_s"),
                     json_number(outcome.out, "retrieval_steps_expanded"));
  };
  const auto [collapsed, none] = end("collapsed");
  const auto [expanded, all] = end("expanded");
  CHECK(none == 0);
  CHECK(all > 500);
  CHECK(expanded == doctest::Approx(collapsed).epsilon(1e-6));
}

TEST_CASE("retrieval cli: an engine of two GPUs moves each head's pages over its own link") {
  const Folder folder;
  std::string node = Folder::read_any(source_dir() + "/models/node/a100-40gb.textproto");
  node.replace(node.find("gpus: 1"), 7, "gpus: 2");
  const std::string path = folder.write("node.textproto", node);
  const auto run = [&](const char* tp, const char* fidelity) {
    const Outcome outcome = succeeded(run_kvtwin(
        folder, method_words("arkvale", {"--no-write", "--format=jsonl", "--set=hardware.node=" + path,
                                         "--set=simulation.retrieval.miss_rate=1",
                                         std::string("--set=engines.tensor_parallel=") + tp,
                                         std::string("--set=simulation.fidelity=") + fidelity})));
    return std::pair(json_number(outcome.out, "elapsed_s"), json_number(outcome.out, "retrieval_bytes_in"));
  };
  const auto [one_s, one_bytes] = run("1", "collapsed");
  const auto [two_s, two_bytes] = run("2", "collapsed");
  CHECK(two_bytes == one_bytes);  // every selectable page of every head
  CHECK(two_s < one_s * 0.6);
  CHECK(run("2", "expanded").first == doctest::Approx(two_s).epsilon(0.001));
}

// Eight engines share the memory of one socket: at 400 GB/s it does not limit their recalls, at 12 GB/s it
// does.
TEST_CASE("retrieval cli: where engines contend for host memory, auto expands steps") {
  const Folder folder;
  const auto run = [&](const char* memory, const char* fidelity) {
    std::string node = Folder::read_any(source_dir() + "/models/node/a100-40gb.textproto");
    const auto replace = [&](const std::string& from, const std::string& to) {
      const size_t at = node.find(from);
      REQUIRE(at != std::string::npos);
      node.replace(at, from.size(), to);
    };
    replace("gpus: 1", "gpus: 8");
    replace("host_memory_bytes { value: 256000000000", "host_memory_bytes { value: 2560000000000");
    replace("host_memory_bytes_per_s { value: 300000000000",
            std::string("host_memory_bytes_per_s { value: ") + memory);
    const std::string path = folder.write("node.textproto", node);
    const Outcome outcome = succeeded(run_kvtwin(
        folder, method_words("freekv", {"--no-write", "--format=jsonl", "--set=hardware.node=" + path,
                                        "--set=engines.count=8", "--set=replay.replicas=2",
                                        "--set=simulation.retrieval.miss_rate=0.5",
                                        std::string("--set=simulation.fidelity=") + fidelity})));
    return std::pair(json_number(outcome.out, "itl_p50_ms"),
                     json_number(outcome.out, "retrieval_steps_expanded"));
  };
  const auto dequantized_collapsed = run("400000000000", "collapsed"),
             dequantized_expanded = run("400000000000", "expanded");
  CHECK(dequantized_collapsed.first == doctest::Approx(dequantized_expanded.first).epsilon(0.01));
  CHECK(run("400000000000", "auto").second == 0);
  const auto low_bit_collapsed = run("12000000000", "collapsed"),
             low_bit_expanded = run("12000000000", "expanded");
  CHECK(low_bit_collapsed.first < low_bit_expanded.first * 0.95);
  const auto chosen = run("12000000000", "auto");
  CHECK(chosen.second > 100);
  CHECK(chosen.first == doctest::Approx(low_bit_expanded.first).epsilon(0.05));
}

TEST_CASE("retrieval cli: the methods are listed with descriptions") {
  const Folder folder;
  const Outcome list = run_kvtwin(folder, {"list", "policies"});
  for (const std::string method : kNames) CHECK(list.printed("  " + method));
  CHECK(list.printed("resident"));
}
