// kvtwin validate: real runs (of the CPU engine here) recorded, replayed, priced and simulated.

#include <fstream>

#include "tests/cli/program.h"

using namespace kvtwin::testing;

namespace {

const std::string kScenario = KVTWIN_SOURCE_DIR "/scenarios/shipped/search_tiny.textproto";

Words validate(const Words& more) {
  return Words{"validate", kScenario, "--quiet", "--set=replay.sessions_max=1"} + more;
}

}  // namespace

TEST_CASE("validate cli: recordings validate again without a run") {
  const Folder folder;
  const std::string out = folder.file("v");
  const Outcome made =
      run_kvtwin(folder, validate({"--out=" + out, "--backend=cpu", "--repeats=2", "--format=json"}));
  // The roofline of an H200 does not fit this machine: figures are far outside.
  CHECK_MESSAGE(made.status == 1, made.err);
  CHECK(made.out == Folder::read_any(out + "/validation.json"));
  CHECK(made.printed("\"same\": true"));
  CHECK(!made.printed("\"same\": false"));
  CHECK(made.printed("\"repeat\": \"2\""));
  CHECK(made.printed("\"verdict\": \"outside\""));
  // No absolute path is stored.
  CHECK(Folder::read_any(out + "/search_tiny/1/run.binpb").find(KVTWIN_SOURCE_DIR) == std::string::npos);

  const Outcome again = run_kvtwin(folder, validate({"--recorded=" + out, "--format=json"}));
  CHECK(again.status == 1);
  CHECK(again.out == made.out);
  const Outcome table = run_kvtwin(folder, validate({"--recorded=" + out}));
  CHECK(table.printed("same decisions  2 of 2 real runs"));
  // A baseline of itself: nothing is worse.
  const Outcome guarded = succeeded(
      run_kvtwin(folder, validate({"--recorded=" + out, "--baseline=" + out + "/validation.json"})));
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
    CHECK_MESSAGE(outcome.said("absent.csv"), outcome.err);
    CHECK(outcome.said("1 of 2 scenarios were not validated"));
    CHECK(outcome.printed("same decisions  1 of 1 real runs"));
  }
}

TEST_CASE("calibrate device cli: operations follow from recorded runs, and errors name the missing input") {
  const Folder folder;
  const std::string profile = KVTWIN_SOURCE_DIR "/models/measured/h200.textproto";
  const std::string scenario = KVTWIN_SOURCE_DIR "/scenarios/suites/validation/snapkv.textproto";
  const Words words = {"calibrate", "device", "--scenario=" + scenario, "--quiet", "--operations=" + profile};
  const auto with = [&](const Words& more) { return run_kvtwin(folder, words + more); };
  check_refused(with({"--recorded=" + folder.file("none")}), "holds no recording");
  const std::string out = folder.file("learnt.textproto");
  const Outcome learnt =
      succeeded(with({"--recorded=" KVTWIN_SOURCE_DIR "/tests/golden/h200", "--out=" + out}));
  CHECK(learnt.printed("slot of a row and head"));
  CHECK(Folder::read_any(out).find("price { of: \"entry ranked\"") != std::string::npos);
  // The prices are read back.
  const Outcome again =
      succeeded(run_kvtwin(folder, {"run", scenario, "--quiet", "--no-write", "--set=cost.profile=" + out}));
  CHECK(!again.printed("was not measured"));
}

TEST_CASE("calibrate device cli: a profile without operations takes those of other GPUs, and says so") {
  const Folder folder;
  const Outcome run = succeeded(run_kvtwin(
      folder, {"run", KVTWIN_SOURCE_DIR "/scenarios/suites/validation/snapkv.textproto", "--quiet", "--no-write",
               "--set=cost.profile=" KVTWIN_SOURCE_DIR "/tests/golden/h100/third/device.textproto"}));
  CHECK(run.printed("what methods add to steps was not measured"));
}
