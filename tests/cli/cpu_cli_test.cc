// Backends that compute real data, on the command line.

#include "tests/cli/program.h"

using namespace kvtwin::testing;

namespace {

const std::string kScenario = KVTWIN_SOURCE_DIR "/scenarios/shipped/search_tiny.textproto";

// One session, which takes a second or two.
Words run_words(const Words& more) {
  return Words{"run", kScenario, "--backend=cpu", "--quiet", "--set=replay.sessions_max=1"} + more;
}

}  // namespace

TEST_CASE("cpu: a run on real data is recorded, and its log replays to the same digest") {
  const Folder folder;
  const Outcome run = succeeded(run_kvtwin(folder, run_words({"--record", "--out=" + folder.file("a")})));
  CHECK(run.printed("(computed "));
  CHECK(run.printed("100.0 % measured"));
  CHECK(run.printed("forced decoding, wall clock"));
  const Outcome replayed = succeeded(run_kvtwin(folder, {"replay", folder.file("a")}));
  CHECK(replayed.printed("same decisions"));
  CHECK(after(replayed.out, "decisions=") == after(run.out, "decisions="));

  // Times are measured and differ, but the samples of requests do not. Nor do they with another step budget
  // or page size, or with the weights read from a file.
  const Outcome init =
      succeeded(run_kvtwin(folder, {"model", "init", KVTWIN_SOURCE_DIR "/models/tiny/llama-4x256.textproto",
                                    "--seed=42", "--out=" + folder.file("m")}));
  const Outcome again = succeeded(
      run_kvtwin(folder, run_words({"--no-write", "--set=cpu.checkpoint=" + folder.file("m"),
                                    "--set=limits.step_tokens_max=200", "--set=memory.page_tokens=32"})));
  CHECK(after(again.out, "samples=") == after(run.out, "samples="));
  const Outcome other = run_kvtwin(folder, run_words({"--no-write", "--seed=7"}));
  CHECK(after(other.out, "samples=") != after(run.out, "samples="));
}

TEST_CASE("cpu: greedy decoding differs from the trace, and is reproducible") {
  const Folder folder;
  const Outcome once = succeeded(run_kvtwin(folder, run_words({"--no-write", "--set=cpu.decode=greedy"})));
  CHECK(once.printed("greedy decoding"));
  const Outcome twice =
      run_kvtwin(folder, run_words({"--no-write", "--set=cpu.decode=greedy", "--set=limits.requests_max=1"}));
  CHECK(after(twice.out, "samples=") == after(once.out, "samples="));
}

TEST_CASE("cpu: under the virtual clock it decides as the simulated backend does, and samples the same") {
  const Folder folder;
  const Outcome computed = run_kvtwin(folder, run_words({"--no-write", "--clock=virtual"}));
  if (computed.said("no simulated backend")) {
    MESSAGE("this build has no simulator: skipped");
    return;
  }
  REQUIRE_MESSAGE(computed.status == 0, computed.err);
  const Outcome simulated = run_kvtwin(
      folder, {"run", kScenario, "--backend=sim", "--quiet", "--set=replay.sessions_max=1", "--no-write"});
  CHECK(after(computed.out, "decisions=") == after(simulated.out, "decisions="));
  const Outcome wall = run_kvtwin(folder, run_words({"--no-write", "--clock=wall"}));
  CHECK(after(computed.out, "samples=") == after(wall.out, "samples="));
}

TEST_CASE("cuda: without a GPU the error names it, status 4; with one, it decides as the others do") {
  const Folder folder;
  const auto run = [&](const Words& more) {
    return run_kvtwin(folder, Words{"run", kScenario, "--quiet", "--set=replay.sessions_max=1"} + more);
  };
  const Outcome first = run({"--backend=cuda", "--no-write", "--clock=virtual"});
  if (first.said("no simulated backend")) return;
  if (first.status != 0) {
    CHECK(first.status == 4);
    CHECK_MESSAGE((first.said("there is no CUDA GPU here") || first.said("this build has no CUDA backend")),
                  first.err);
    CHECK_MESSAGE(first.said("--backend=cpu, or --backend=sim"), first.err);
    return;
  }
  CHECK(first.printed("computed in bf16 on a GPU"));
  const Outcome simulated = run({"--backend=sim", "--no-write"});
  CHECK(after(first.out, "decisions=") == after(simulated.out, "decisions="));
  CHECK(after(run({"--backend=cuda", "--no-write", "--clock=virtual"}).out, "samples=") ==
        after(first.out, "samples="));
  const Outcome wall = succeeded(run({"--backend=cuda", "--record", "--set=cuda.timings=true",
                                      "--timeline=0..10", "--out=" + folder.file("a")}));
  CHECK(wall.printed("100.0 % measured"));
  CHECK(folder.has("a/operations.csv"));
  const Outcome replayed = run_kvtwin(folder, {"replay", folder.file("a")});
  CHECK(after(replayed.out, "decisions=") == after(wall.out, "decisions="));
  CHECK(run({"--backend=cuda", "--no-write", "--set=engines.tensor_parallel=2"}).status == 2);
}

TEST_CASE(
    "cpu: packed formats are computed, and decide under the virtual clock as the simulated backend does") {
  const Folder folder;
  for (const std::string name : {"int4", "kivi", "triaxial"}) {
    CAPTURE(name);
    const std::string scenario = KVTWIN_SOURCE_DIR "/scenarios/methods/tiny/" + name + ".textproto";
    const auto words = [&](const Words& more) {
      return Words{"run", scenario, "--quiet", "--no-write", "--set=replay.sessions_max=1"} + more;
    };
    const Outcome wall = succeeded(run_kvtwin(folder, words({"--backend=cpu", "--clock=wall"})));
    const Outcome exact = run_kvtwin(folder, words({"--backend=cpu", "--set=policies.precision=bf16"}));
    CHECK(after(exact.out, "samples=") != after(wall.out, "samples="));
    const Outcome simulated = run_kvtwin(folder, words({"--backend=sim"}));
    if (simulated.said("no simulated backend")) continue;
    const Outcome computed = run_kvtwin(folder, words({"--backend=cpu", "--clock=virtual"}));
    CHECK(after(computed.out, "decisions=") == after(simulated.out, "decisions="));
    const Outcome single = run_kvtwin(folder, words({"--backend=sim", "--set=simulation.coalesce=false"}));
    CHECK(after(single.out, "decisions=") == after(simulated.out, "decisions="));
    const std::string log = folder.file(name);
    const Outcome recorded =
        succeeded(run_kvtwin(folder, {"run", scenario, "--quiet", "--record", "--out=" + log}));
    const Outcome replayed = succeeded(run_kvtwin(folder, {"replay", log}));
  }
}

TEST_CASE("cpu: requests that share compressed prefixes sample as those that compute them") {
  const Folder folder;
  const auto run = [&](const Words& more) {
    const Words words = Words{"run", KVTWIN_SOURCE_DIR "/scenarios/methods/tiny/tangram_turns.textproto",
                              "--quiet", "--no-write", "--set=replay.sessions_max=1"} +
                        more;
    const Outcome done = run_kvtwin(folder, words);
    if (!done.said("no simulated backend")) REQUIRE_MESSAGE(done.status == 0, done.err);
    return done;
  };
  const Outcome shared = run({"--backend=cpu", "--clock=virtual"});
  const Outcome apart = run({"--backend=cpu", "--clock=virtual", "--set=limits.prefix_cache=false",
                             "--set=policies.identity=none"});
  CHECK(shared.printed("prefix reuse              50.9 %"));
  CHECK(after(shared.out, "samples=") == after(apart.out, "samples="));
  const Outcome simulated = run({"--backend=sim"});
  if (simulated.status == 0) CHECK(after(shared.out, "decisions=") == after(simulated.out, "decisions="));
}

TEST_CASE(
    "cpu: turns that grow old are requantised, in both backends alike; with ageing ignored they stay in "
    "int4") {
  const Folder folder;
  const std::string trace = folder.file("turns.kvtrace"), log = folder.file("aged");
  const Outcome drawn = succeeded(run_kvtwin(
      folder, {"trace", "synth", "bfcl-memory-like", "--sessions=1", "--set=dialogues=1", "--out=" + trace}));
  const auto run = [&](const std::string& ageing, const Words& more) {
    return run_kvtwin(
        folder,
        Words{"run", KVTWIN_SOURCE_DIR "/scenarios/methods/tiny/triaxial.textproto", "--quiet",
              "--set=trace.path=" + trace, "--set=replay.arrivals=all_at_once", "--set=replay.requests_max=6",
              "--set=policies.identity=session", "--set=policies.precision_options.ageing=" + ageing} +
            more);
  };
  const Outcome simulated = run("requantise", {"--backend=sim", "--no-write"});
  if (simulated.said("no simulated backend")) return;
  REQUIRE_MESSAGE(simulated.status == 0, simulated.err);
  CHECK(std::stoi(after(simulated.out, "requantised")) >= 32);
  const Outcome single =
      run("requantise", {"--backend=sim", "--no-write", "--set=simulation.coalesce=false"});
  CHECK(after(single.out, "decisions=") == after(simulated.out, "decisions="));
  const Outcome computed =
      succeeded(run("requantise", {"--backend=cpu", "--clock=virtual", "--record", "--out=" + log}));
  CHECK(after(computed.out, "decisions=") == after(simulated.out, "decisions="));
  const Outcome replayed = run_kvtwin(folder, {"replay", log});
  CHECK(replayed.printed("same decisions"));
  const Outcome ignored = run("ignore", {"--backend=cpu", "--no-write"});
  CHECK(!ignored.printed("requantised"));
  CHECK(after(ignored.out, "samples=") != after(computed.out, "samples="));
}
