// Backends that compute real data, on the command line.

#include "tests/cli/program.h"

using namespace kvtwin::testing;

namespace {

const std::string kScenario = KVTWIN_SOURCE_DIR "/scenarios/shipped/search_tiny.textproto";

// One session, which takes a second or two.
std::vector<std::string> run_words(const std::vector<std::string>& more) {
  std::vector<std::string> words = {"run", kScenario, "--backend=cpu", "--quiet",
                                    "--set=replay.sessions_max=1"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace

TEST_CASE("cpu: a run on real data is recorded, and its log replays to the same digest") {
  const Folder folder;
  const Outcome run = run_kvtwin(folder, run_words({"--record", "--out=" + folder.file("a")}));
  REQUIRE_MESSAGE(run.status == 0, run.err);
  CHECK(run.out.find("(computed ") != std::string::npos);
  CHECK(run.out.find("100.0 % measured") != std::string::npos);
  CHECK(run.out.find("forced decoding, wall clock") != std::string::npos);
  const Outcome replayed = run_kvtwin(folder, {"replay", folder.file("a")});
  CHECK(replayed.status == 0);
  CHECK(replayed.out.find("same decisions") != std::string::npos);
  CHECK(after(replayed.out, "decisions=") == after(run.out, "decisions="));

  // Times are measured and differ, but the samples of requests do not. Nor do they with another step budget
  // or page size, or with the weights read from a file.
  const Outcome init =
      run_kvtwin(folder, {"model", "init", KVTWIN_SOURCE_DIR "/models/tiny/llama-4x256.textproto",
                          "--seed=42", "--out=" + folder.file("m")});
  REQUIRE_MESSAGE(init.status == 0, init.err);
  const Outcome again =
      run_kvtwin(folder, run_words({"--no-write", "--set=cpu.checkpoint=" + folder.file("m"),
                                    "--set=limits.step_tokens_max=200", "--set=memory.page_tokens=32"}));
  REQUIRE_MESSAGE(again.status == 0, again.err);
  CHECK(after(again.out, "samples=") == after(run.out, "samples="));
  const Outcome other = run_kvtwin(folder, run_words({"--no-write", "--seed=7"}));
  CHECK(after(other.out, "samples=") != after(run.out, "samples="));
}

TEST_CASE("cpu: settings that it cannot compute are refused with a remedy, status 2") {
  const Folder folder;
  const struct {
    std::vector<std::string> words;
    const char* message;
  } rows[] = {
      {{"--backend=gpu"}, "backend is \"gpu\"; did you mean \"cuda\""},
      {{"--backend=cuda", "--clock=real"}, "clock is \"real\""},
      {{"--backend=sim", "--clock=wall"}, "the simulated backend has no wall clock"},
      {{"--backend=cpu", "--set=model.name=gpt-oss-20b"}, "family \"gpt_oss\" is not computed"},
      {{"--backend=cpu", "--set=cpu.decode=beam"}, "decode is \"beam\""},
      {{"--backend=cpu", "--set=cpu.checkpoint=/nowhere"}, "\"/nowhere\" does not exist"},
      {{"--backend=cpu", "--set=cpu.checkpoint=" KVTWIN_SOURCE_DIR "/models"},
       "config.json: cannot be opened"},
      {{"--backend=cpu", "--set=cpu.checkpoint=" KVTWIN_SOURCE_DIR "/tests/golden/hf/data/llama_tied"},
       "has 2 layers, model llama-4x256 has 4"},
  };
  for (const auto& row : rows) {
    std::vector<std::string> words = {"run", kScenario, "--quiet", "--no-write"};
    words.insert(words.end(), row.words.begin(), row.words.end());
    const Outcome outcome = run_kvtwin(folder, words);
    CHECK(outcome.status == 2);
    CHECK_MESSAGE(outcome.said(row.message), outcome.err);
  }
  const Outcome init = run_kvtwin(folder, {"model", "init", "gpt-oss-20b", "--out=" + folder.file("m")});
  CHECK(init.status == 2);
  CHECK(!folder.has("m"));
}

TEST_CASE("cpu: greedy decoding differs from the trace, and is reproducible") {
  const Folder folder;
  const Outcome once = run_kvtwin(folder, run_words({"--no-write", "--set=cpu.decode=greedy"}));
  REQUIRE_MESSAGE(once.status == 0, once.err);
  CHECK(once.out.find("greedy decoding") != std::string::npos);
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
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"run", kScenario, "--quiet", "--set=replay.sessions_max=1"};
    words.insert(words.end(), more.begin(), more.end());
    return run_kvtwin(folder, words);
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
  CHECK(first.out.find("computed in bf16 on a GPU") != std::string::npos);
  const Outcome simulated = run({"--backend=sim", "--no-write"});
  CHECK(after(first.out, "decisions=") == after(simulated.out, "decisions="));
  CHECK(after(run({"--backend=cuda", "--no-write", "--clock=virtual"}).out, "samples=") ==
        after(first.out, "samples="));
  const Outcome wall = run({"--backend=cuda", "--record", "--set=cuda.timings=true", "--timeline=0..10",
                            "--out=" + folder.file("a")});
  REQUIRE_MESSAGE(wall.status == 0, wall.err);
  CHECK(wall.out.find("100.0 % measured") != std::string::npos);
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
    const auto words = [&](const std::vector<std::string>& more) {
      std::vector<std::string> out = {"run", scenario, "--quiet", "--no-write",
                                      "--set=replay.sessions_max=1"};
      out.insert(out.end(), more.begin(), more.end());
      return out;
    };
    const Outcome wall = run_kvtwin(folder, words({"--backend=cpu", "--clock=wall"}));
    REQUIRE_MESSAGE(wall.status == 0, wall.err);
    const Outcome exact = run_kvtwin(folder, words({"--backend=cpu", "--set=policies.precision=bf16"}));
    CHECK(after(exact.out, "samples=") != after(wall.out, "samples="));
    const Outcome simulated = run_kvtwin(folder, words({"--backend=sim"}));
    if (simulated.said("no simulated backend")) continue;
    const Outcome computed = run_kvtwin(folder, words({"--backend=cpu", "--clock=virtual"}));
    CHECK(after(computed.out, "decisions=") == after(simulated.out, "decisions="));
    const Outcome single = run_kvtwin(folder, words({"--backend=sim", "--set=simulation.coalesce=false"}));
    CHECK(after(single.out, "decisions=") == after(simulated.out, "decisions="));
    const std::string log = folder.file(name);
    const Outcome recorded = run_kvtwin(folder, {"run", scenario, "--quiet", "--record", "--out=" + log});
    REQUIRE_MESSAGE(recorded.status == 0, recorded.err);
    const Outcome replayed = run_kvtwin(folder, {"replay", log});
    CHECK_MESSAGE(replayed.status == 0, replayed.err);
  }
}

TEST_CASE("cpu: requests that share compressed prefixes sample as those that compute them") {
  const Folder folder;
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"run",
                                      KVTWIN_SOURCE_DIR "/scenarios/methods/tiny/tangram_turns.textproto",
                                      "--quiet", "--no-write", "--set=replay.sessions_max=1"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome done = run_kvtwin(folder, words);
    if (!done.said("no simulated backend")) REQUIRE_MESSAGE(done.status == 0, done.err);
    return done;
  };
  const Outcome shared = run({"--backend=cpu", "--clock=virtual"});
  const Outcome apart = run({"--backend=cpu", "--clock=virtual", "--set=limits.prefix_cache=false",
                             "--set=policies.identity=none"});
  CHECK(shared.out.find("prefix reuse              50.9 %") != std::string::npos);
  CHECK(after(shared.out, "samples=") == after(apart.out, "samples="));
  const Outcome simulated = run({"--backend=sim"});
  if (simulated.status == 0) CHECK(after(shared.out, "decisions=") == after(simulated.out, "decisions="));
}

TEST_CASE(
    "cpu: turns that grow old are requantised, in both backends alike; with ageing ignored they stay in "
    "int4") {
  const Folder folder;
  const std::string trace = folder.file("turns.kvtrace"), log = folder.file("aged");
  const Outcome drawn = run_kvtwin(
      folder, {"trace", "synth", "bfcl-memory-like", "--sessions=1", "--set=dialogues=1", "--out=" + trace});
  REQUIRE_MESSAGE(drawn.status == 0, drawn.err);
  const auto run = [&](const std::string& ageing, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"run",
                                      KVTWIN_SOURCE_DIR "/scenarios/methods/tiny/triaxial.textproto",
                                      "--quiet",
                                      "--set=trace.path=" + trace,
                                      "--set=replay.arrivals=all_at_once",
                                      "--set=replay.requests_max=6",
                                      "--set=policies.identity=session",
                                      "--set=policies.precision_options.ageing=" + ageing};
    words.insert(words.end(), more.begin(), more.end());
    return run_kvtwin(folder, words);
  };
  const Outcome simulated = run("requantise", {"--backend=sim", "--no-write"});
  if (simulated.said("no simulated backend")) return;
  REQUIRE_MESSAGE(simulated.status == 0, simulated.err);
  CHECK(std::stoi(after(simulated.out, "requantised")) >= 32);
  const Outcome single =
      run("requantise", {"--backend=sim", "--no-write", "--set=simulation.coalesce=false"});
  CHECK(after(single.out, "decisions=") == after(simulated.out, "decisions="));
  const Outcome computed =
      run("requantise", {"--backend=cpu", "--clock=virtual", "--record", "--out=" + log});
  REQUIRE_MESSAGE(computed.status == 0, computed.err);
  CHECK(after(computed.out, "decisions=") == after(simulated.out, "decisions="));
  const Outcome replayed = run_kvtwin(folder, {"replay", log});
  CHECK(replayed.out.find("same decisions") != std::string::npos);
  const Outcome ignored = run("ignore", {"--backend=cpu", "--no-write"});
  CHECK(ignored.out.find("requantised") == std::string::npos);
  CHECK(after(ignored.out, "samples=") != after(computed.out, "samples="));
}
