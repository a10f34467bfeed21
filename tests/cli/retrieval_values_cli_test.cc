// The retrieval methods on real data, on the command line: scenarios/methods/tiny.

#include "tests/cli/program.h"

using namespace kvtwin::testing;

namespace {

const Words kOnValues = {"quest", "arkvale", "shadowkv", "infinigen", "freekv"};

Outcome run_tiny(const Folder& folder, const std::string& method, const Words& more) {
  return run_kvtwin(folder, method_words("tiny/" + method, more));
}

}  // namespace

TEST_CASE("same decisions: the simulated backend with the computed outcomes repeats the run, byte for byte") {
  for (const std::string& method : kOnValues) {
    CAPTURE(method);
    const Folder folder;
    const auto out = [&](const char* name) { return "--out=" + folder.file(name); };
    const Outcome computed =
        succeeded(run_tiny(folder, method, {"--backend=cpu", "--clock=virtual", "--record", out("cpu")}));
    CHECK(computed.printed("outcomes natural"));
    const Outcome simulated = succeeded(
        run_tiny(folder, method,
                 {"--backend=sim", "--record", out("sim"), "--set=simulation.retrieval.outcomes=recorded",
                  "--set=simulation.recorded_run=" + folder.file("cpu")}));
    CHECK(!simulated.printed("the others fixed"));
    CHECK(after(simulated.out, "decisions=") == after(computed.out, "decisions="));
    for (const char* file : {"/requests.csv", "/log.binpb", "/outcomes.binpb"})
      CHECK(folder.read(std::string("sim") + file) == folder.read(std::string("cpu") + file));
    // Other outcomes take other times, so requests join other steps. (Quest recalls nothing, and InfiniGen
    // always selects the maximum.)
    if (method == "quest" || method == "infinigen") continue;
    const Outcome fixed = run_tiny(folder, method, {"--backend=sim", "--no-write"});
    CHECK(after(fixed.out, "decisions=") != after(computed.out, "decisions="));
  }
}

TEST_CASE(
    "same decisions: turns that start with prefixes on the host sample the same as without, in both "
    "backends") {
  const Folder folder;
  const auto out = [&](const char* name) { return "--out=" + folder.file(name); };
  const Outcome computed = succeeded(
      run_tiny(folder, "freekv_turns", {"--backend=cpu", "--clock=virtual", "--record", out("cpu")}));
  const Outcome simulated = succeeded(
      run_tiny(folder, "freekv_turns",
               {"--backend=sim", "--record", out("sim"), "--set=simulation.retrieval.outcomes=recorded",
                "--set=simulation.recorded_run=" + folder.file("cpu")}));
  for (const char* file : {"/requests.csv", "/log.binpb", "/outcomes.binpb"})
    CHECK(folder.read(std::string("sim") + file) == folder.read(std::string("cpu") + file));
  const Outcome replayed = run_kvtwin(folder, {"replay", folder.file("cpu")});
  CHECK(replayed.printed("same decisions"));
  const Outcome apart = succeeded(
      run_tiny(folder, "freekv_turns",
               {"--backend=cpu", "--clock=virtual", "--no-write", "--set=limits.prefix_cache=false"}));
  CHECK(after(apart.out, "samples=") == after(computed.out, "samples="));
  CHECK(after(apart.out, "decisions=") != after(computed.out, "decisions="));
}

TEST_CASE(
    "same decisions: under the wall clock a run's log replays, and samples equal those of the virtual "
    "clock") {
  for (const std::string& method : kOnValues) {
    CAPTURE(method);
    const Folder folder;
    // A preempted request samples differently, so there is room for all.
    const std::string room = "--set=memory.gpu_pages=400";
    const Outcome wall = succeeded(run_tiny(
        folder, method, {"--backend=cpu", "--clock=wall", "--record", "--out=" + folder.file("a"), room}));
    const Outcome replayed = succeeded(run_kvtwin(folder, {"replay", folder.file("a")}));
    CHECK(replayed.printed("same decisions"));
    CHECK(after(replayed.out, "decisions=") == after(wall.out, "decisions="));
    const Outcome other = run_tiny(folder, method, {"--backend=cpu", "--clock=virtual", "--no-write", room});
    CHECK(after(other.out, "samples=") == after(wall.out, "samples="));
    CHECK(after(other.out, "outcomes natural: ") == after(wall.out, "outcomes natural: "));
  }
}

TEST_CASE(
    "retrieval on real data: the resulting rates are printed, and can be given to the simulated backend") {
  const Folder folder;
  const Outcome table = run_tiny(folder, "freekv", {"--backend=cpu", "--clock=virtual", "--no-write"});
  CHECK(table.printed("% of the head-pages chosen were absent"));
  const auto rates = [&](const Words& more) {
    const Words words = Words{"--no-write", "--format=jsonl"} + more;
    const Outcome outcome = succeeded(run_tiny(folder, "freekv", words));
    const auto number = [&](const char* key) {
      return std::stod(outcome.out.substr(outcome.out.find(key) + std::string(key).size()));
    };
    return std::pair(number("\"retrieval_miss_rate\":"), number("\"retrieval_correction_rate\":"));
  };
  const auto [miss, correction] = rates({"--backend=cpu", "--clock=virtual"});
  CHECK(miss > 0.2);
  CHECK(correction > 0.2);
  CHECK(correction < 0.8);
  // F-3: the recalled bytes, at K and V of 16 tokens of 64 numbers in bf16.
  const Outcome priced =
      run_tiny(folder, "freekv", {"--backend=cpu", "--clock=virtual", "--no-write", "--format=jsonl"});
  const auto number = [&](const std::string& key) {
    const size_t at = priced.out.find("\"" + key + "\":");
    REQUIRE(at != std::string::npos);
    return std::stod(priced.out.substr(at + key.size() + 3));
  };
  CHECK(number("retrieval_bytes_in") ==
        (number("retrieval_pages_now") + number("retrieval_pages_next")) * 2 * 16 * 64 * 2);
  const auto [fixed_miss, fixed_correction] =
      rates({"--backend=sim", "--set=simulation.retrieval.miss_rate=" + std::to_string(miss),
             "--set=simulation.retrieval.correction_rate=" + std::to_string(correction)});
  CHECK(fixed_miss == doctest::Approx(miss).epsilon(0.1));
  CHECK(fixed_correction == doctest::Approx(correction).epsilon(0.1));
}
