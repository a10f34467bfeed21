// Promises of every command: complete output, answers to the question that was asked, output folders of one
// run.

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <sstream>

#include "tests/cli/program.h"

namespace fs = std::filesystem;
using namespace kvtwin::testing;

namespace {

const std::string kScenarios = std::string(KVTWIN_SOURCE_DIR) + "/scenarios/shipped/";
const std::string kSample = kScenarios + "coding_agents_small.textproto";

// Runs kvtwin in a shell, for redirections.
Outcome shell(const Folder& folder, const std::string& words) {
  const std::string err = folder.file(".err");
  const int status = std::system(
      fmt::format("cd '{}' && timeout 60 '{}' {} 2>'{}'", folder.path(), KVTWIN_PROGRAM, words, err).c_str());
  Outcome out;
  out.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  out.err = Folder::read_any(err);
  return out;
}

std::vector<std::string> small_run(const std::string& out, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {"run", kSample, "--quiet", "--set=replay.sessions_max=1", "--out=" + out};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace

TEST_CASE(
    "command line: a setting that the others leave unread is refused with the setting that makes it "
    "effective") {
  const Folder folder;
  struct Row {
    std::vector<std::string> words;
    const char* message;
  };
  const std::string out = "--out=" + folder.file("o");
  const std::vector<Row> rows = {
      {{"run", kSample, "--no-write", "--set=replay.population=4"},
       "--set=replay.population=4: replay.population is not read where replay.arrivals is recorded; "
       "it is read with --set=replay.arrivals=fixed_population"},
      {{"run", kSample, "--no-write", "--set=replay.sessions_per_s=2"},
       "it is read with --set=replay.arrivals=poisson"},
      {{"run", kSample, "--no-write", "--set=replay.retries_max=2"},
       "it is read with --set=replay.on_reject=retry"},
      {{"run", kSample, "--no-write", "--set=limits.spill_pages_target=9"}, "memory.disk_bytes is 0"},
      {{"run", kSample, "--no-write", "--set=policies.precision_options.group=64"},
       "policies.precision is bf16"},
      // The trace makes "auto" a closed loop, which does not use recorded arrival times.
      {{"run", kSample, "--no-write", "--set=replay.arrivals=all_at_once", "--set=replay.arrival_scale=2"},
       "replay.arrival_scale is not read"},
      {{"sweep", kSample, "--vary=replay.population=1,2,4", out},
       "--vary=replay.population: replay.population"},
      {{"sweep", kSample, "--vary=limits.requests_max=1,2", "--set=replay.population=4", out},
       "--set=replay.population=4: replay.population"},
      {{"sweep", kSample, "--vary=limits.requests_max=1,2", "--halve=ttft_p99_ms:min",
        "--rungs=replay.population=1,2", out},
       "--set=replay.population=1: replay.population"},
      {{"plan", kSample, "--slo=ttft_p99<2s", "--load=replay.population=1..500", "--need=200",
        "--allow-roofline", "--vary=hardware.node=h200,h100", out},
       "--load=replay.population: replay.population is not read"},
      {{"plan", kSample, "--slo=ttft_p99<2s", "--load=replay.population=1..24", "--need=24",
        "--allow-roofline", out},
       "it is read with --set=replay.arrivals=fixed_population"},
      {{"explain", kSample, "--shape=decodes=1,context=64", "--set=replay.population=4"},
       "--set=replay.population=4: replay.population is not read"},
      {{"explain", kSample, "--shape=decodes=1,context=64", "--set=cpu.decode=greedy"}, "backend is sim"},
      {{"explain", kSample, "--shape=decodes=1,context=64", "--set=backend=cpu"},
       "--set=backend=cpu: kvtwin explain prices steps with backend=sim only; leave it out"},
      {{"validate", kScenarios + "search_tiny.textproto", "--recorded=none", "--set=replay.population=4"},
       "--set=replay.population=4: replay.population is not read"},
      {{"evaluate", kScenarios + "../quality/full.textproto", kScenarios + "../quality/int4.textproto",
        "--questions=4", "--tasks=old_result", "--out=" + folder.file("e"), "--set=replay.retries_max=3"},
       "--set=replay.retries_max=3: replay.retries_max is not read"},
      {{"evaluate", kScenarios + "../quality/full.textproto", "--questions=4", "--tasks=old_result",
        "--jobs=2", "--out=" + folder.file("e"), "--set=policies.precision_options.group=32"},
       "policies.precision is bf16"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.words.back());
    const Outcome outcome = run_kvtwin(folder, row.words);
    CHECK(outcome.status == 2);
    CHECK(outcome.out.empty());
    CHECK_MESSAGE(outcome.said(row.message), outcome.err);
  }
  CHECK(!folder.has("o"));
}

TEST_CASE("command line: a setting that one point of a sweep reads, or that a file holds, is accepted") {
  const Folder folder;
  const Outcome sweep = run_kvtwin(
      folder, {"sweep", kSample, "--quiet", "--vary=replay.arrivals=recorded,fixed_population",
               "--vary=replay.population=1,2", "--set=replay.sessions_max=2", "--out=" + folder.file("s")});
  CHECK_MESSAGE(sweep.status == 0, sweep.err);
  const std::string text = Folder::read_any(kSample);
  const std::string file = folder.write("mine.textproto", text + "\nreplay { population: 3 }\n");
  const Outcome run = run_kvtwin(folder, {"run", file, "--no-write", "--quiet", "--set=replay.sessions_max=1",
                                          "--set=trace.path=" + kScenarios + "../../traces/data/none"});
  CHECK(!run.said("is not read"));
  const Outcome allowed = run_kvtwin(folder, {"run", kSample, "--no-write", "--quiet", "--allow-unread",
                                              "--set=replay.population=4", "--set=replay.sessions_max=1"});
  CHECK_MESSAGE(allowed.status == 0, allowed.err);
  CHECK(allowed.out.find("--allow-unread") != std::string::npos);
}

TEST_CASE("command line: a plan answers only the question that was asked") {
  const Folder folder;
  const auto plan = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {
        "plan", kSample, "--quiet", "--seeds=1", "--slo=ttft_p99<60s", "--out=" + folder.file("p")};
    words.insert(words.end(), more.begin(), more.end());
    return run_kvtwin(folder, words);
  };
  // The setting is read but has no effect: no request is ever rejected.
  const Outcome same = plan(
      {"--set=replay.on_reject=retry", "--load=replay.retries_max=1..3", "--need=2", "--allow-roofline"});
  CHECK(same.status == 2);
  CHECK_MESSAGE(same.said("--load=replay.retries_max: the runs at 1 and 3 are equal"), same.err);
  const std::vector<std::string> population = {"--set=replay.arrivals=fixed_population", "--allow-roofline",
                                               "--load=replay.population=1..500"};
  std::vector<std::string> words = population;
  words.push_back("--need=200");
  const Outcome few = plan(words);
  CHECK(few.status == 2);
  CHECK_MESSAGE(few.said("--need=200: the trace has 24 sessions, so 200 are never in flight; "
                         "--set=replay.replicas=9"),
                few.err);
  words.back() = "--need=16";
  const Outcome capped = plan(words);
  CHECK_MESSAGE(capped.status == 0, capped.err);
  CHECK_MESSAGE(capped.out.find("The trace has 24 sessions, too few for 500 in flight") != std::string::npos,
                capped.out);
  CHECK_MESSAGE(capped.out.find("holds population of at least 24 (16 needed") != std::string::npos,
                capped.out);
  const Outcome unjudged =
      plan({"--set=replay.arrivals=fixed_population", "--load=replay.population=1..4", "--need=2"});
  CHECK(unjudged.status == 2);
  CHECK_MESSAGE(unjudged.out.starts_with("Not judged: "), unjudged.out);
  const Outcome typo = plan({"--set=replay.arrivals=fixed_population", "--load=replay.population=1..4",
                             "--need=2", "--allow-roofline", "--vary=memory.host_bytes=0,500gb"});
  CHECK(typo.status == 2);
  CHECK_MESSAGE(typo.said("\"500gb\" is not a value of memory.host_bytes"), typo.err);
}

TEST_CASE("command line: words of other engines and unknown metrics are errors that name ours") {
  const Folder folder;
  struct Row {
    std::vector<std::string> words;
    const char* message;
  };
  const std::string out = "--out=" + folder.file("o");
  const std::vector<Row> rows = {
      {{"run", kSample, "--max-num-seqs=4"},
       "no option \"--max-num-seqs\"; max_num_seqs (vLLM) is limits.requests_max here, as in "
       "--set=limits.requests_max=..."},
      {{"run", kSample, "--no-write", "--set=gpu_memory_utilization=0.9"}, "is memory.gpu_fraction here"},
      {{"run", kSample, "--no-write", "--set=limits.chunked_prefill_size=4096"},
       "chunked_prefill_size (SGLang) is limits.chunk_tokens_max here"},
      {{"run", kSample, "--no-write", "--timeline=0..5lightyears"}, "0..5lightyears"},
      {{"sweep", kSample, "--vary=seed=1,2", "--columns=ttft_p98_ms", out},
       "there is no metric \"ttft_p98_ms\"; did"},
      {{"sweep", kSample, "--vary=seed=1,2", "--halve=swiftness:max", "--rungs=replay.sessions_max=1,2", out},
       "there is no metric \"swiftness\"; kvtwin list metrics prints all"},
      {{"sweep", kSample, "--vary=memory.host_bytes=1MB..2GB*2", out},
       "has one unit at its start and another"},
      {{"plan", kSample, "--slo=speed>1", "--load=replay.population=1..2", "--need=1", out},
       "there is no metric \"speed\""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.message);
    const Outcome outcome = run_kvtwin(folder, row.words);
    CHECK(outcome.status == 2);
    CHECK_MESSAGE(outcome.said(row.message), outcome.err);
    CHECK(!fs::exists(folder.file("o")));
  }
  const Outcome named =
      run_kvtwin(folder, {"sweep", kSample, "--vary=memory.host_bytes=1GB,2GB", "--set=replay.sessions_max=1",
                          "--columns=p99_ttft_ms,prefix_reuse", "--quiet", out});
  CHECK_MESSAGE(named.status == 0, named.err);
  CHECK(named.out.find("ttft_p99_ms  prefix_reuse") != std::string::npos);
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
      const Outcome outcome = shell(folder, words + stdout_to);
      CHECK(outcome.status == 3);
      CHECK(outcome.err.find("cannot ") != std::string::npos);
    }
  }
  // Without output nothing can be lost, and no file receives the printed text.
  CHECK(shell(folder, run + " >/dev/null").status == 0);
}

TEST_CASE("command line: an output folder holds one run") {
  const Folder folder;
  const std::string dir = folder.file("o");
  REQUIRE(run_kvtwin(folder, small_run(dir, {"--record", "--timeline=0..1"})).status == 0);
  REQUIRE(folder.has("o/log.binpb"));
  CHECK(run_kvtwin(folder, {"replay", dir}).status == 0);
  // Other inputs: refused before anything runs, and nothing is changed.
  const std::string before = folder.read("o/run.binpb");
  const Outcome other = run_kvtwin(folder, small_run(dir, {"--set=limits.requests_max=2"}));
  CHECK(other.status == 2);
  CHECK_MESSAGE(other.said("holds the result of other inputs (coding_agents_small)"), other.err);
  CHECK(folder.read("o/run.binpb") == before);
  // The same inputs without a log remove the old log; foreign files stay.
  folder.write("o/notes.txt", "mine");
  REQUIRE(run_kvtwin(folder, small_run(dir)).status == 0);
  CHECK(!folder.has("o/log.binpb"));
  CHECK(!folder.has("o/timeline.json"));
  CHECK(folder.read("o/notes.txt") == "mine");
  CHECK(folder.read("o/run.binpb") == before);
  fs::remove(dir + "/notes.txt");
  REQUIRE(run_kvtwin(folder, small_run(dir, {"--record"})).status == 0);
  REQUIRE(run_kvtwin(folder, small_run(dir, {"--set=limits.requests_max=2", "--force"})).status == 0);
  CHECK(!folder.has("o/log.binpb"));
  for (const auto& entry : fs::directory_iterator(folder.path()))
    CHECK(entry.path().filename().string().find("kvtwin-run") == std::string::npos);
}

TEST_CASE("command line: replay refuses a log next to the result of another run") {
  const Folder folder;
  REQUIRE(run_kvtwin(folder, small_run(folder.file("a"), {"--record"})).status == 0);
  REQUIRE(run_kvtwin(folder, small_run(folder.file("b"), {"--record", "--set=limits.step_tokens_max=512"}))
              .status == 0);
  fs::copy_file(folder.file("a/log.binpb"), folder.file("b/log.binpb"), fs::copy_options::overwrite_existing);
  const Outcome mixed = run_kvtwin(folder, {"replay", folder.file("b")});
  CHECK(mixed.status == 2);
  CHECK_MESSAGE(mixed.said("is the log of another run"), mixed.err);
  CHECK(run_kvtwin(folder, {"replay", folder.file("b/log.binpb")}).status == 0);
}

TEST_CASE("command line: an import does not mix with another result") {
  const Folder folder;
  const std::string bench = std::string(KVTWIN_SOURCE_DIR) + "/tests/unit/scenarios/data/";
  REQUIRE(run_kvtwin(folder, small_run(folder.file("o"), {"--record"})).status == 0);
  const std::string jsonl = folder.write(
      "bench.json", R"({"input_lens":[10],"output_lens":[2],"ttfts":[0.1],"itls":[[0.1]],"errors":[""],)"
                    R"("start_times":[0.0],"duration":1.0,"completed":1,"model_id":"m"})");
  const Outcome refused =
      run_kvtwin(folder, {"import", jsonl, "--format=bench", "--out=" + folder.file("o")});
  CHECK(refused.status == 2);
  CHECK_MESSAGE(refused.said("holds the result of other inputs"), refused.err);
  const Outcome forced =
      run_kvtwin(folder, {"import", jsonl, "--format=bench", "--force", "--out=" + folder.file("o")});
  CHECK_MESSAGE(forced.status == 0, forced.err);
  CHECK(!folder.has("o/log.binpb"));
  CHECK(run_kvtwin(folder, {"import", jsonl, "--format=bench", "--out=" + folder.file("o")}).status == 0);
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
  REQUIRE(run_kvtwin(folder, small_run(folder.file("o"))).status == 0);
  CHECK(!folder.has("o.kvtwin-run-4194305-1"));
  CHECK(folder.has(alive + "/run.binpb"));
  CHECK(folder.has("other.kvtwin-run-4194305-1/run.binpb"));
}

TEST_CASE("command line: numbers that do not fit are refused") {
  const Folder folder;
  for (const char* seed : {"-1", "18446744073709551616", "1.5"}) {
    CAPTURE(seed);
    const Outcome run =
        run_kvtwin(folder, {"run", kSample, "--no-write", "--quiet", std::string("--seed=") + seed});
    CHECK(run.status == 2);
    CHECK_MESSAGE(run.said(std::string("--seed=") + seed), run.err);
    CHECK(run_kvtwin(folder, {"sweep", kSample, "--vary=seed=1,2", std::string("--seed=") + seed,
                              "--out=" + folder.file("s")})
              .status == 2);
  }
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
      const Outcome outcome = shell(folder, words + " >/dev/null");
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
  const Outcome alone = run_kvtwin(folder, {"--format=json"});
  CHECK(alone.status == 2);
  CHECK_MESSAGE(alone.said("no option \"--format\"; options follow their command"), alone.err);
}

TEST_CASE("command line: an absent backend is exit status 4") {
  if (fs::exists("/dev/nvidiactl")) return;  // it is present
  const Folder folder;
  const Outcome cuda = run_kvtwin(
      folder, {"run", kScenarios + "search_tiny.textproto", "--backend=cuda", "--clock=wall", "--no-write"});
  CHECK(cuda.status == 4);
  CHECK_MESSAGE(cuda.said("CUDA"), cuda.err);
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
    CHECK_MESSAGE(found.out.find(row.node) != std::string::npos, found.out);
    CHECK_MESSAGE(found.out.find(row.profile) != std::string::npos, found.out);
  }
}
