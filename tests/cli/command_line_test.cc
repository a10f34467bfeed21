// Promises of every command: complete output, answers to the question that was asked, output folders of one
// run.

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/cli/program.h"

namespace fs = std::filesystem;
using namespace kvtwin::testing;

namespace {

const std::string kScenarios = std::string(KVTWIN_SOURCE_DIR) + "/scenarios/shipped/";
const std::string kSample = kScenarios + "coding_agents_small.textproto";

Words small_run(const std::string& out, const Words& more = {}) {
  return Words{"run", kSample, "--quiet", "--set=replay.sessions_max=1", "--out=" + out} + more;
}

}  // namespace

TEST_CASE("command line: a setting that one point of a sweep reads, or that a file holds, is accepted") {
  const Folder folder;
  const Outcome sweep = succeeded(run_kvtwin(
      folder, {"sweep", kSample, "--quiet", "--vary=replay.arrivals=recorded,fixed_population",
               "--vary=replay.population=1,2", "--set=replay.sessions_max=2", "--out=" + folder.file("s")}));
  const std::string text = Folder::read_any(kSample);
  const std::string file = folder.write("mine.textproto", text + "\nreplay { population: 3 }\n");
  const Outcome run = run_kvtwin(folder, {"run", file, "--no-write", "--quiet", "--set=replay.sessions_max=1",
                                          "--set=trace.path=" + kScenarios + "../../traces/data/none"});
  CHECK(!run.said("is not read"));
  const Outcome allowed =
      succeeded(run_kvtwin(folder, {"run", kSample, "--no-write", "--quiet", "--allow-unread",
                                    "--set=replay.population=4", "--set=replay.sessions_max=1"}));
  CHECK(allowed.printed("--allow-unread"));
}

TEST_CASE("command line: a plan answers only the question that was asked") {
  const Folder folder;
  const auto plan = [&](Words more) {
    return run_kvtwin(folder, Words{"plan", kSample, "--quiet", "--seeds=1", "--slo=ttft_p99<60s",
                                    "--out=" + folder.file("p")} +
                                  more);
  };
  // The setting is read but has no effect: no request is ever rejected.
  check_refused(plan({"--set=replay.on_reject=retry", "--load=replay.retries_max=1..3", "--need=2",
                      "--allow-roofline"}),
                "--load=replay.retries_max: the runs at 1 and 3 are equal");
  const Words population = {"--set=replay.arrivals=fixed_population", "--allow-roofline",
                            "--load=replay.population=1..500"};
  Words words = population;
  words.push_back("--need=200");
  const Outcome few = plan(words);
  CHECK(few.status == 2);
  CHECK_MESSAGE(few.said("--need=200: the trace has 24 sessions, so 200 are never in flight; "
                         "--set=replay.replicas=9"),
                few.err);
  words.back() = "--need=16";
  const Outcome capped = succeeded(plan(words));
  CHECK_MESSAGE(capped.printed("The trace has 24 sessions, too few for 500 in flight"), capped.out);
  CHECK_MESSAGE(capped.printed("holds population of at least 24 (16 needed"), capped.out);
  const Outcome unjudged =
      plan({"--set=replay.arrivals=fixed_population", "--load=replay.population=1..4", "--need=2"});
  CHECK(unjudged.status == 2);
  CHECK_MESSAGE(unjudged.out.starts_with("Not judged: "), unjudged.out);
}

TEST_CASE("command line: a metric's words may come in another order") {
  const Folder folder;
  const Outcome named = succeeded(
      run_kvtwin(folder, {"sweep", kSample, "--vary=memory.host_bytes=1GB,2GB", "--set=replay.sessions_max=1",
                          "--columns=p99_ttft_ms,prefix_reuse", "--quiet", "--out=" + folder.file("o")}));
  CHECK(named.printed("ttft_p99_ms  prefix_reuse"));
}

TEST_CASE("command line: output that cannot be written is exit status 3") {
  const Folder folder;
  const std::string run = "run " + kSample + " --quiet --no-write --set=replay.sessions_max=1";
  const std::string sweep =
      "sweep " + kSample + " --quiet --vary=limits.requests_max=1,2 --set=replay.sessions_max=1 --out=s";
  for (const std::string& words :
       {run, run + " --format=json", std::string("list policies"), std::string("--help"),
        std::string("--version"), sweep + " --format=csv",
        std::string("trace inspect ") + KVTWIN_SOURCE_DIR + "/traces/data/coding_agents_small.kvtrace"}) {
    for (const char* stdout_to : {" >/dev/full", " >&-"}) {
      CAPTURE(words);
      CAPTURE(stdout_to);
      const Outcome outcome = run_in_shell(folder, words + stdout_to);
      CHECK(outcome.status == 3);
      CHECK(outcome.said("cannot "));
    }
  }
  // Without output nothing can be lost, and no file receives the printed text.
  succeeded(run_in_shell(folder, run + " >/dev/null"));
}

TEST_CASE("command line: an output folder holds one run") {
  const Folder folder;
  const std::string dir = folder.file("o");
  succeeded(run_kvtwin(folder, small_run(dir, {"--record", "--timeline=0..1"})));
  REQUIRE(folder.has("o/log.binpb"));
  succeeded(run_kvtwin(folder, {"replay", dir}));
  // Other inputs: refused before anything runs, and nothing is changed.
  const std::string before = folder.read("o/run.binpb");
  check_refused(run_kvtwin(folder, small_run(dir, {"--set=limits.requests_max=2"})),
                "holds the result of other inputs (coding_agents_small)");
  CHECK(folder.read("o/run.binpb") == before);
  // The same inputs without a log remove the old log; foreign files stay.
  folder.write("o/notes.txt", "mine");
  succeeded(run_kvtwin(folder, small_run(dir)));
  CHECK(!folder.has("o/log.binpb"));
  CHECK(!folder.has("o/timeline.json"));
  CHECK(folder.read("o/notes.txt") == "mine");
  CHECK(folder.read("o/run.binpb") == before);
  fs::remove(dir + "/notes.txt");
  succeeded(run_kvtwin(folder, small_run(dir, {"--record"})));
  succeeded(run_kvtwin(folder, small_run(dir, {"--set=limits.requests_max=2", "--force"})));
  CHECK(!folder.has("o/log.binpb"));
  for (const auto& entry : fs::directory_iterator(folder.path()))
    CHECK(entry.path().filename().string().find("kvtwin-run") == std::string::npos);
}

TEST_CASE("command line: replay refuses a log next to the result of another run") {
  const Folder folder;
  succeeded(run_kvtwin(folder, small_run(folder.file("a"), {"--record"})));
  succeeded(
      run_kvtwin(folder, small_run(folder.file("b"), {"--record", "--set=limits.step_tokens_max=512"})));
  fs::copy_file(folder.file("a/log.binpb"), folder.file("b/log.binpb"), fs::copy_options::overwrite_existing);
  check_refused(run_kvtwin(folder, {"replay", folder.file("b")}), "is the log of another run");
  succeeded(run_kvtwin(folder, {"replay", folder.file("b/log.binpb")}));
}

TEST_CASE("command line: an import does not mix with another result") {
  const Folder folder;
  const std::string bench = std::string(KVTWIN_SOURCE_DIR) + "/tests/unit/scenarios/data/";
  succeeded(run_kvtwin(folder, small_run(folder.file("o"), {"--record"})));
  const std::string jsonl = folder.write(
      "bench.json", R"({"input_lens":[10],"output_lens":[2],"ttfts":[0.1],"itls":[[0.1]],"errors":[""],)"
                    R"("start_times":[0.0],"duration":1.0,"completed":1,"model_id":"m"})");
  check_refused(run_kvtwin(folder, {"import", jsonl, "--format=bench", "--out=" + folder.file("o")}),
                "holds the result of other inputs");
  const Outcome forced = succeeded(
      run_kvtwin(folder, {"import", jsonl, "--format=bench", "--force", "--out=" + folder.file("o")}));
  CHECK(!folder.has("o/log.binpb"));
  succeeded(run_kvtwin(folder, {"import", jsonl, "--format=bench", "--out=" + folder.file("o")}));
}

// The start of this process, as the names of drafts have it: field 22 of proc(5)'s stat.
std::string start_of_this() {
  const std::string stat = Folder::read_any("/proc/self/stat");
  std::istringstream fields(stat.substr(stat.rfind(')') + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  return field;
}

// A process id that cannot be in use, and this process's own.
TEST_CASE(
    "command line: leftovers of a killed run of the same folder are removed, files of a live one stay") {
  const Folder folder;
  const std::string alive = "o.kvtwin-run-" + std::to_string(getpid()) + "-" + start_of_this();
  folder.write("o.kvtwin-run-4194305-1/run.binpb", "cut");
  folder.write(alive + "/run.binpb", "being written");
  folder.write("other.kvtwin-run-4194305-1/run.binpb", "of another folder");
  succeeded(run_kvtwin(folder, small_run(folder.file("o"))));
  CHECK(!folder.has("o.kvtwin-run-4194305-1"));
  CHECK(folder.has(alive + "/run.binpb"));
  CHECK(folder.has("other.kvtwin-run-4194305-1/run.binpb"));
}

TEST_CASE("command line: pipes and devices are refused as input files") {
  const Folder folder;
  const std::string pipe = folder.file("pipe");
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  for (const std::string& input : {pipe, std::string("/dev/zero")}) {
    for (const std::string& words :
         {"run " + input, "run " + kSample + " --set=trace.path=" + input, "trace inspect " + input,
          "run " + kSample + " --set=cost.profile=" + input, "compare " + input + " x", "replay " + input,
          "import --out=x " + input, "model import --name=x " + input,
          "trace import mooncake --out=x " + input}) {
      CAPTURE(words);
      const Outcome outcome = run_in_shell(folder, words + " >/dev/null");
      CHECK(outcome.status == 2);
      const bool named =
          outcome.said("is a pipe") || outcome.said("is a device") || outcome.said("x/run.binpb");
      CHECK_MESSAGE(named, outcome.err);
    }
  }
}

TEST_CASE("command line: the words that users try first are answered") {
  const Folder folder;
  const std::string main_help = run_kvtwin(folder, {"--help"}).out;
  const std::string run_help = run_kvtwin(folder, {"run", "--help"}).out;
  const std::string version = run_kvtwin(folder, {"--version"}).out;
  REQUIRE(!main_help.empty());
  REQUIRE(run_help != main_help);
  CHECK(run_kvtwin(folder, {"-h"}).out == main_help);
  CHECK(run_kvtwin(folder, {"help"}).out == main_help);
  CHECK(run_kvtwin(folder, {"help", "run"}).out == run_help);
  CHECK(run_kvtwin(folder, {"run", "-h"}).out == run_help);
  CHECK(run_kvtwin(folder, {"version"}).out == version);
  const Outcome short_version = run_kvtwin(folder, {"-V"});
  CHECK(short_version.out == version);
  CHECK(short_version.status == 0);
  for (const char* command :
       {"run", "replay", "sweep", "plan", "report", "compare", "trace", "model", "device", "explain",
        "calibrate", "validate", "inspect-policy", "evaluate", "import", "list", "doctor"})
    CHECK_MESSAGE(main_help.find(fmt::format("\n  kvtwin {} ", command)) != std::string::npos, command);
  CHECK(main_help.find("formats") != std::string::npos);
}

TEST_CASE("doctor: names the GPU, its node of the catalog and its measured step times") {
  const Folder folder;
  const struct {
    const char *gpu, *node, *profile;
  } rows[] = {{"none", "", ""},
              {"NVIDIA H100 80GB HBM3", "\"this\" is \"h100\"", "h100.textproto (2026"},
              {"NVIDIA L40S", "\"this\" is \"l40s\"", "calibrate device --out="},
              {"NVIDIA T4", "no node has this GPU", ""}};
  for (const auto& row : rows) {
    CAPTURE(std::string(row.gpu));
    setenv("KVTWIN_GPU", row.gpu, 1);
    const Outcome found = run_kvtwin(folder, {"doctor"});
    unsetenv("KVTWIN_GPU");
    CHECK(found.status == 0);
    CHECK_MESSAGE(found.printed(row.node), found.out);
    CHECK_MESSAGE(found.printed(row.profile), found.out);
  }
}
