// Forced outcomes on the command line: an engine that computes real data follows the outcomes of a record or
// a model, and decides and takes as long as the simulated backend with the same outcomes.

#include "tests/cli/program.h"

using namespace kvtwin::testing;

namespace {

Words run_words(const std::string& method, const Words& more) {
  return Words{"run", KVTWIN_SOURCE_DIR "/scenarios/methods/tiny/" + method + ".textproto", "--quiet"} + more;
}

const std::string kForceOutcomes = "--set=simulation.force_outcomes=true";

}  // namespace

TEST_CASE("forced: with a run's outcomes, a run on other data repeats it") {
  uint32_t row = 0;
  const std::vector<std::pair<const char*, const char*>> rows = {{"adakv", "retained"},
                                                                 {"critical_kv", "retained"},
                                                                 {"kvzip", "retained"},
                                                                 {"intentkv", "retained"},
                                                                 {"intentkv_slots", "retained"},
                                                                 {"tangram_released", "retained"},
                                                                 {"freekv", "retrieval.outcomes"},
                                                                 {"arkvale", "retrieval.outcomes"}};
  for (const auto& [method, field] : rows) {
    CAPTURE(method);
    const Folder folder;
    const auto run = [&](const char* out, const Words& more) {
      const Words to = {"--backend=cpu", "--clock=virtual", "--record", "--out=" + folder.file(out)};
      return succeeded(run_kvtwin(folder, run_words(method, to + more)));
    };
    const Outcome natural = run("a", {});
    // Other tokens and weights.
    const bool asked = row++ % 3 == 0;
    if (asked) run("b", {"--set=seed=9"});
    const Outcome repeated =
        run("c", {"--set=seed=9", kForceOutcomes, "--set=simulation.recorded_run=" + folder.file("a"),
                  std::string("--set=simulation.") + field + "=recorded"});
    CHECK(repeated.printed("forced, recorded"));
    CHECK(!repeated.printed("the others fixed"));
    CHECK(!repeated.printed("; met in"));
    CHECK(after(repeated.out, "decisions=") == after(natural.out, "decisions="));
    CHECK(folder.read("a/requests.csv") == folder.read("c/requests.csv"));
    CHECK(folder.read("a/outcomes.binpb") == folder.read("c/outcomes.binpb"));
    if (asked) CHECK(folder.read("a/outcomes.binpb") != folder.read("b/outcomes.binpb"));
  }
}

TEST_CASE(
    "forced: with fixed rates or a profile, real data and simulation make the same decisions at the same "
    "times") {
  struct Row {
    const char* method;
    Words sets;
  };
  const std::string retrieval = "--set=simulation.retrieval.";
  const auto rates = [&](const char* miss, const char* corrected) {
    return Words{retrieval + "miss_rate=" + miss, retrieval + "correction_rate=" + corrected};
  };
  const std::vector<Row> rows = {{"freekv", rates("0.05", "0.1")},
                                 {"freekv", rates("0.2", "0")},
                                 {"freekv", rates("0.5", "1")},
                                 {"freekv", rates("1", "0.3")},
                                 {"arkvale", rates("0.2", "0")},
                                 {"adakv", {}},
                                 {"critical_kv", {}},
                                 {"kvzip", {}},
                                 {"intentkv", {}},
                                 {"tangram_released", {}}};
  for (const Row& row : rows) {
    CAPTURE(row.method);
    const Folder folder;
    const auto run = [&](const char* backend, const char* out) {
      const Words how = {kForceOutcomes, std::string("--backend=") + backend, "--clock=virtual", "--record",
                         "--out=" + folder.file(out)};
      return succeeded(run_kvtwin(folder, run_words(row.method, row.sets + how)));
    };
    const Outcome simulated = run("sim", "a"), computed = run("cpu", "b");
    CHECK(!simulated.printed("forced, "));
    CHECK(computed.printed("forced, fixed"));
    CHECK_MESSAGE(!computed.printed("; met in"), computed.out);
    CHECK(after(computed.out, "decisions=") == after(simulated.out, "decisions="));
    CHECK(folder.read("a/requests.csv") == folder.read("b/requests.csv"));
  }
}

TEST_CASE("forced: also under the wall clock") {
  const Folder folder;
  const Outcome wall = succeeded(
      run_kvtwin(folder, run_words("freekv", {kForceOutcomes, "--backend=cpu", "--clock=wall", "--no-write",
                                              "--set=simulation.retrieval.miss_rate=1",
                                              "--set=simulation.retrieval.correction_rate=0"})));
  CHECK(wall.printed("outcomes forced, fixed"));
  CHECK(wall.printed("0 head-pages recalled before attention"));
  CHECK(!wall.printed("; met in"));
}
