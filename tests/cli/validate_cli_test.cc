// kvtwin validate: real runs (of the CPU engine here) recorded, replayed, priced and simulated.

#include <doctest/doctest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/program.h"

using namespace kvtwin::testing;

namespace {

const std::string kScenario = KVTWIN_SOURCE_DIR "/scenarios/shipped/search_tiny.textproto";

std::vector<std::string> validate(const std::vector<std::string>& more) {
  std::vector<std::string> words = {"validate", kScenario, "--quiet", "--set=replay.sessions_max=1"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

}  // namespace

TEST_CASE("validate cli: recordings validate again without a run") {
  const Folder folder;
  const std::string out = folder.file("v");
  const Outcome made =
      run_kvtwin(folder, validate({"--out=" + out, "--backend=cpu", "--repeats=2", "--format=json"}));
  // The roofline of an H200 does not fit this machine: figures are far outside.
  CHECK_MESSAGE(made.status == 1, made.err);
  CHECK(made.out == text_of(out + "/validation.json"));
  CHECK(made.out.find("\"same\": true") != std::string::npos);
  CHECK(made.out.find("\"same\": false") == std::string::npos);
  CHECK(made.out.find("\"repeat\": \"2\"") != std::string::npos);
  CHECK(made.out.find("\"verdict\": \"outside\"") != std::string::npos);
  // No absolute path is stored.
  CHECK(text_of(out + "/search_tiny/1/run.binpb").find(KVTWIN_SOURCE_DIR) == std::string::npos);

  const Outcome again = run_kvtwin(folder, validate({"--recorded=" + out, "--format=json"}));
  CHECK(again.status == 1);
  CHECK(again.out == made.out);
  const Outcome table = run_kvtwin(folder, validate({"--recorded=" + out}));
  CHECK(table.out.find("same decisions  2 of 2 real runs") != std::string::npos);
  // A baseline of itself: nothing is worse.
  const Outcome guarded =
      run_kvtwin(folder, validate({"--recorded=" + out, "--baseline=" + out + "/validation.json"}));
  CHECK_MESSAGE(guarded.status == 0, guarded.err);
}

TEST_CASE("validate cli: a scenario that cannot be read is named, and the others are validated") {
  const Folder folder;
  const std::string out = folder.file("v"), lacking = folder.file("lacking.textproto");
  std::ofstream(lacking) << "model { name: \"llama-3.1-8b\" }\nhardware { node: \"h200\" }\n"
                            "trace { path: \"absent.csv\" format: \"azure\" }\n";
  for (const std::string& from : {"--out=" + out, "--recorded=" + out}) {
    const Outcome outcome =
        run_kvtwin(folder, {"validate", lacking, kScenario, "--quiet", from, "--backend=cpu", "--repeats=1"});
    CHECK_MESSAGE(outcome.status == 2, outcome.err);
    CHECK_MESSAGE(outcome.err.find("absent.csv") != std::string::npos, outcome.err);
    CHECK(outcome.err.find("1 of 2 scenarios were not validated") != std::string::npos);
    CHECK(outcome.out.find("same decisions  1 of 1 real runs") != std::string::npos);
  }
}

TEST_CASE("validate cli: errors name the remedy") {
  const Folder folder;
  const struct {
    std::vector<std::string> words;
    const char* message;
    int status;
  } rows[] = {
      {validate({}), "needs one of --recorded and --out", 2},
      {validate({"--recorded=" + folder.file("none")}), "holds no recording", 2},
      {validate({"--out=x", "--repeats=0"}), "--repeats: is 0; 1 to 100", 2},
      {validate({"--out=x", "--backend=sim"}), "--backend: is \"sim\"; cuda or cpu", 2},
      {validate({"--out=x", "--format=csv"}), "validate does not write csv; table or json", 2},
      {validate({"--recorded=x", "--known=none.textproto"}), "none.textproto", 2},
      {validate({"--recorded=x", "--set=limits.requests_max=x"}), "limits.requests_max", 2},
  };
  for (const auto& row : rows) {
    const Outcome outcome = run_kvtwin(folder, row.words);
    CHECK_MESSAGE(outcome.status == row.status, outcome.err);
    CHECK_MESSAGE(outcome.err.find(row.message) != std::string::npos, outcome.err);
  }
}

TEST_CASE("calibrate methods cli: prices are fitted to recorded runs, and errors name the missing input") {
  const Folder folder;
  const std::string profile = KVTWIN_SOURCE_DIR "/models/measured/h200.textproto";
  const std::string scenario = KVTWIN_SOURCE_DIR "/scenarios/suites/validation/snapkv.textproto";
  const std::vector<std::string> words = {"calibrate", "methods", scenario, "--quiet",
                                          "--profile=" + profile};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = words;
    all.insert(all.end(), more.begin(), more.end());
    return run_kvtwin(folder, all);
  };
  const Outcome neither = with({});
  CHECK(neither.status == 2);
  CHECK(neither.err.find("needs one of --recorded and --keep") != std::string::npos);
  const Outcome nothing = with({"--recorded=" + folder.file("none")});
  CHECK(nothing.status == 2);
  CHECK(nothing.err.find("holds no recording") != std::string::npos);

  const std::string out = folder.file("learnt.textproto");
  const Outcome learnt = with({"--recorded=" KVTWIN_SOURCE_DIR "/tests/golden/h200", "--out=" + out});
  CHECK_MESSAGE(learnt.status == 0, learnt.err);
  CHECK(learnt.out.find("snapkv/uniform/compact") != std::string::npos);
  CHECK(text_of(out).find("term { of: \"compression\"") != std::string::npos);
  // The fitted prices are read back, and other methods' prices are preserved.
  const Outcome again =
      run_kvtwin(folder, {"run", scenario, "--quiet", "--no-write", "--set=cost.profile=" + out});
  CHECK_MESSAGE(again.status == 0, again.err);
  CHECK(again.out.find("was not calibrated") == std::string::npos);
}

TEST_CASE(
    "calibrate methods cli: an uncalibrated method is priced by the roofline, and the output states it") {
  const Folder folder;
  const Outcome run =
      run_kvtwin(folder, {"run", KVTWIN_SOURCE_DIR "/scenarios/suites/validation/snapkv.textproto", "--quiet",
                          "--no-write", "--set=policies.scorer=keydiff",
                          "--set=policies.budget_options.chunk_tokens=512"});
  CHECK_MESSAGE(run.status == 0, run.err);
  CHECK(run.out.find("keydiff/uniform/compact was not calibrated") != std::string::npos);
}
