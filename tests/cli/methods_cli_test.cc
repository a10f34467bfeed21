// Each method that drops KV entries, as a small scenario in both backends: the data decides on the CPU
// engine, and the simulated backend with the same outcomes decides the same.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "tests/cli/program.h"

using namespace kvtwin::testing;

namespace {

const std::filesystem::path kMethods = KVTWIN_SOURCE_DIR "/scenarios/methods";

std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Names of the scenarios in `folder` whose budget is not "all".
Words dropping(const std::filesystem::path& folder) {
  Words out;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() != ".textproto") continue;
    if (text_of(file.path()).find("budget: \"") != std::string::npos) out.push_back(file.path().stem());
  }
  std::sort(out.begin(), out.end());
  return out;
}

Words run_words(const std::string& method, const Words& more) {
  return Words{"run", (kMethods / "tiny" / (method + ".textproto")).string(), "--quiet"} + more;
}

}  // namespace

TEST_CASE("methods: each one that drops KV entries has a small scenario") {
  const Words large = dropping(kMethods), small = dropping(kMethods / "tiny");
  for (const std::string& method : large) {
    CAPTURE(method);
    CHECK(std::find(small.begin(), small.end(), method) != small.end());
  }
  CHECK(large.size() >= 23);
}

TEST_CASE(
    "methods: computed under the virtual clock or simulated with its outcomes, a run decides the same") {
  for (const std::string& method : dropping(kMethods / "tiny")) {
    CAPTURE(method);
    const Folder folder;
    const Outcome computed = run_kvtwin(folder, run_words(method, {"--backend=cpu", "--clock=virtual",
                                                                   "--record", "--out=" + folder.file("a")}));
    if (computed.said("no simulated backend")) {
      MESSAGE("this build has no simulator: skipped");
      return;
    }
    REQUIRE_MESSAGE(computed.status == 0, computed.err);
    // Entries are dropped.
    const std::string reads = computed.out.substr(computed.out.find("decode reads"));
    CHECK(std::stod(after(reads, "decode reads")) < 0.8 * std::stod(after(reads, "M of")));

    const bool ring = reads.substr(0, reads.find('\n')).find("ring") != std::string::npos;
    Words more = {"--backend=sim", "--no-write"};
    const bool chooses = computed.printed("choosing heads");
    const bool recalls = method == "freekv_snapkv";
    CHECK(chooses == (method == "composite" || recalls));
    if (chooses) {
      // Heads select pages. Without recall no selected page is absent.
      if (!recalls) CHECK(after(computed.out, "absent; 0.00 % of ")[0] != '0');
      CHECK((!computed.printed(" 0.00 % of the head-pages chosen were absent")) == recalls);
      more.push_back("--set=simulation.retrieval.outcomes=recorded");
    }
    if (!ring) {
      more.push_back("--set=simulation.retained=recorded");
      more.push_back("--set=simulation.recorded_run=" + folder.file("a"));
    }
    const Outcome simulated = succeeded(run_kvtwin(folder, run_words(method, more)));
    CHECK(!simulated.printed("the others fixed"));
    CHECK(after(simulated.out, "decisions=") == after(computed.out, "decisions="));

    const Outcome replayed = run_kvtwin(folder, {"replay", folder.file("a")});
    CHECK(replayed.printed("same decisions"));
    CHECK(after(replayed.out, "decisions=") == after(computed.out, "decisions="));
  }
}

TEST_CASE(
    "methods: the times of scorers and compressions are reported, and cost.compressions: free omits them") {
  for (const char* method : {"snapkv", "h2o", "kvzip", "tangram_released"}) {
    CAPTURE(method);
    const Folder folder;
    const auto run = [&](const std::string& how) {
      return run_kvtwin(folder, run_words(method, {"--backend=sim", "--no-write", "--format=jsonl",
                                                   "--set=cost.compressions=" + how}));
    };
    const Outcome priced = run("roofline"), free = run("free");
    if (priced.said("no simulat")) return;
    REQUIRE_MESSAGE(priced.status == 0, priced.err);
    REQUIRE_MESSAGE(free.status == 0, free.err);
    const auto number = [](const Outcome& of, const std::string& key) {
      return std::stod(after(of.out, "\"" + key + "\":"));
    };
    CHECK(number(priced, "compressions") > 0);
    CHECK(!free.printed("\"compressions\""));
    CHECK(number(priced, "prompt_steps_compression_s") > 0);
    CHECK(number(priced, "prompt_steps_compression_s") < number(priced, "prompt_steps_s"));
    CHECK(number(priced, "time_latency_s") > number(free, "time_latency_s"));
    CHECK((number(priced, "compression_probe_s") > 0) == (std::string(method) == "kvzip"));
    CHECK((number(priced, "compression_capture_s") > 0) ==
          (std::string(method) == "h2o" || std::string(method) == "tangram_released"));
  }
}

TEST_CASE("methods: a recording under the wall clock replays to the same digest") {
  for (const std::string method : {"tangram", "adakv", "intentkv", "h2o", "judge_q", "streaming_llm"}) {
    CAPTURE(method);
    const Folder folder;
    const Outcome run = succeeded(
        run_kvtwin(folder, run_words(method, {"--backend=cpu", "--clock=wall", "--record",
                                              "--set=replay.requests_max=2", "--out=" + folder.file("a")})));
    const Outcome replayed = run_kvtwin(folder, {"replay", folder.file("a")});
    CHECK(replayed.printed("same decisions"));
    CHECK(after(replayed.out, "decisions=") == after(run.out, "decisions="));
  }
}

TEST_CASE("methods: a run's notes say how templates and queries of prompts are found") {
  const Folder folder;
  const std::string no_roles = "--set=trace.path=" + folder.file("lengths.csv");
  std::ofstream(folder.file("lengths.csv")) << "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                                            << "2026-01-01 00:00:00.0000000,600,8\n"
                                            << "2026-01-01 00:00:00.0000000,700,8\n";
  const struct {
    Words words;
    std::string note;
  } rows[] = {
      {{}, "scorer intent_rule: templates and queries are those of the trace's roles"},
      {{"--set=replay.roles=false"},
       "scorer intent_rule: replay.roles is false, so templates and queries are the first 16 and the last 64 "
       "tokens"},
      {{no_roles, "--set=trace.format=azure"},
       "scorer intent_rule: 2 of 2 requests of the trace have no roles; their templates and queries are the "
       "first 16"},
      {{"--set=policies.scorer=snapkv"}, ""},
  };
  std::set<std::string> decisions;
  for (const auto& row : rows) {
    CAPTURE(row.note);
    const Words more = Words{"--backend=sim", "--no-write"} + row.words;
    const Outcome run = run_kvtwin(folder, run_words("intentkv", more));
    if (run.said("no simulated backend")) return;
    REQUIRE_MESSAGE(run.status == 0, run.err);
    CHECK((run.printed("scorer intent_rule")) == !row.note.empty());
    // A note of the summary may be broken into lines.
    std::string words = run.out;
    std::replace(words.begin(), words.end(), '\n', ' ');
    words.erase(std::unique(words.begin(), words.end(), [](char a, char b) { return a == ' ' && b == ' '; }),
                words.end());
    CHECK_MESSAGE(words.find(row.note) != std::string::npos, run.out);
    decisions.insert(after(run.out, "decisions="));
  }
  // Without roles, both scorers force the same positions.
  CHECK(decisions.size() == std::size(rows) - 1);
}
