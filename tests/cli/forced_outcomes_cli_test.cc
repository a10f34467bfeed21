// Forced outcomes on the command line: an engine that computes real data follows the outcomes of a record or
// a model, and decides and takes as long as the simulated backend with the same outcomes.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/cli/program.h"

using namespace kvtwin::testing;

namespace {

std::vector<std::string> run_words(const std::string& method, const std::vector<std::string>& more) {
  std::vector<std::string> words = {
      "run", KVTWIN_SOURCE_DIR "/scenarios/methods/tiny/" + method + ".textproto", "--quiet"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
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
    const std::vector<std::string> computed = {"--backend=cpu", "--clock=virtual", "--record"};
    const auto run = [&](const char* out, const std::vector<std::string>& more) {
      std::vector<std::string> all = computed;
      all.insert(all.end(), more.begin(), more.end());
      all.push_back("--out=" + folder.file(out));
      const Outcome outcome = run_kvtwin(folder, run_words(method, all));
      REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
      return outcome;
    };
    const Outcome natural = run("a", {});
    // Other tokens and weights.
    const bool asked = row++ % 3 == 0;
    if (asked) run("b", {"--set=seed=9"});
    const Outcome repeated =
        run("c", {"--set=seed=9", kForceOutcomes, "--set=simulation.recorded_run=" + folder.file("a"),
                  std::string("--set=simulation.") + field + "=recorded"});
    CHECK(repeated.out.find("forced, recorded") != std::string::npos);
    CHECK(repeated.out.find("the others fixed") == std::string::npos);
    CHECK(repeated.out.find("; met in") == std::string::npos);
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
    std::vector<std::string> sets;
  };
  const std::string retrieval = "--set=simulation.retrieval.";
  const auto rates = [&](const char* miss, const char* corrected) {
    return std::vector<std::string>{retrieval + "miss_rate=" + miss,
                                    retrieval + "correction_rate=" + corrected};
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
      std::vector<std::string> more = row.sets;
      more.insert(more.end(), {kForceOutcomes, std::string("--backend=") + backend, "--clock=virtual",
                               "--record", "--out=" + folder.file(out)});
      const Outcome outcome = run_kvtwin(folder, run_words(row.method, more));
      REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
      return outcome;
    };
    const Outcome simulated = run("sim", "a"), computed = run("cpu", "b");
    CHECK(simulated.out.find("forced, ") == std::string::npos);
    CHECK(computed.out.find("forced, fixed") != std::string::npos);
    CHECK_MESSAGE(computed.out.find("; met in") == std::string::npos, computed.out);
    CHECK(after(computed.out, "decisions=") == after(simulated.out, "decisions="));
    CHECK(folder.read("a/requests.csv") == folder.read("b/requests.csv"));
  }
}

TEST_CASE("forced: also under the wall clock; outcomes that cannot be forced are refused with a remedy") {
  const Folder folder;
  const Outcome wall =
      run_kvtwin(folder, run_words("freekv", {kForceOutcomes, "--backend=cpu", "--clock=wall", "--no-write",
                                              "--set=simulation.retrieval.miss_rate=1",
                                              "--set=simulation.retrieval.correction_rate=0"}));
  REQUIRE_MESSAGE(wall.status == 0, wall.err);
  CHECK(wall.out.find("outcomes forced, fixed") != std::string::npos);
  CHECK(wall.out.find("0 head-pages recalled before attention") != std::string::npos);
  CHECK(wall.out.find("; met in") == std::string::npos);
  const Outcome refused =
      run_kvtwin(folder, run_words("infinigen", {kForceOutcomes, "--backend=cpu", "--no-write"}));
  CHECK(refused.status == 2);
  CHECK(refused.said("recalls of retrieval infinigen cannot be forced"));
}
