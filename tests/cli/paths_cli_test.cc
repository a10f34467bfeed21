// Paths and names as users type them: relative to the working directory, a shipped scenario's name, a wrong
// file.

#include <filesystem>

#include "tests/cli/program.h"

namespace fs = std::filesystem;
using namespace kvtwin::testing;

namespace {

const std::string kShipped =
    std::string(KVTWIN_SOURCE_DIR) + "/scenarios/shipped/coding_agents_small.textproto";
const std::string kTrace = std::string(KVTWIN_SOURCE_DIR) + "/traces/data/coding_agents_small.kvtrace";
const std::string kNodes = std::string(KVTWIN_SOURCE_DIR) + "/models/node/";
const std::string kDevices = std::string(KVTWIN_SOURCE_DIR) + "/models/device/";

// Runs kvtwin with the working directory `from`.
Outcome run_from(const Folder& folder, const std::string& from, const Words& words) {
  const fs::path before = fs::current_path();
  fs::current_path(from);
  const Outcome outcome = run_kvtwin(folder, words);
  fs::current_path(before);
  return outcome;
}

Words one_session(const std::string& scenario, const Words& more) {
  return Words{"run", scenario, "--quiet", "--no-write", "--set=replay.sessions_max=1"} + more;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE(
    "paths: a path given with --set is relative to the working directory, or else to the scenario file") {
  const Folder folder;
  fs::copy_file(kTrace, folder.file("t.kvtrace"));
  folder.write("gpu/mine.textproto", Folder::read_any(kNodes + "h200.textproto"));
  folder.write("llm.textproto",
               Folder::read_any(std::string(KVTWIN_SOURCE_DIR) + "/models/llm/llama-3.1-8b.textproto"));
  const std::string plain = run_kvtwin(folder, one_session(kShipped, {})).out;
  const std::string digest = after(plain, "decisions=");
  for (const char* set : {"--set=trace.path=t.kvtrace", "--set=trace.path=./t.kvtrace",
                          "--set=hardware.node=gpu/mine.textproto", "--set=model.name=llm.textproto",
                          "--set=trace.path=../../traces/data/coding_agents_small.kvtrace"}) {
    CAPTURE(set);
    const Outcome outcome = succeeded(run_from(folder, folder.path(), one_session(kShipped, {set})));
    CHECK(after(outcome.out, "decisions=") == digest);
  }
  // A path in the file itself is relative to the file only.
  folder.write("s/mine.textproto", replaced(Folder::read_any(kShipped), "../traces/data/", ""));
  check_refused(run_from(folder, folder.path(), one_session("s/mine.textproto", {})),
                "paths are relative to the scenario file");
}

TEST_CASE("paths: a node's device is relative to the node's file, and is an input of the run") {
  const Folder folder;
  const std::string node = replaced(Folder::read_any(kNodes + "h200.textproto"), "device: \"h200\"",
                                    "device: \"mine-device.textproto\"");
  folder.write("gpu/node.textproto", node);
  folder.write("gpu/mine-device.textproto", Folder::read_any(kDevices + "h200.textproto"));
  fs::create_directories(folder.file("else"));
  const std::string digest = after(run_kvtwin(folder, one_session(kShipped, {})).out, "decisions=");
  for (const auto& [from, path] : {std::pair(folder.path(), "gpu/node.textproto"),
                                   {folder.file("gpu"), "node.textproto"},
                                   {folder.file("else"), "../gpu/node.textproto"}}) {
    CAPTURE(from);
    const Outcome outcome = succeeded(
        run_from(folder, from, one_session(kShipped, {std::string("--set=hardware.node=") + path})));
    CHECK(after(outcome.out, "decisions=") == digest);
  }
  const auto key = [&] {
    const Outcome outcome =
        succeeded(run_from(folder, folder.path(),
                           {"sweep", kShipped, "--set=hardware.node=gpu/node.textproto", "--vary=seed=1",
                            "--dry-run", "--format=jsonl", "--quiet", "--out=" + folder.file("s")}));
    return after(outcome.out, "\"key\":\"");
  };
  const std::string before = key();
  CHECK(key() == before);
  std::ofstream(folder.file("gpu/mine-device.textproto"), std::ios::app) << "# another device\n";
  CHECK(key() != before);
  fs::remove(folder.file("gpu/mine-device.textproto"));
  check_refused(
      run_from(folder, folder.path(), one_session(kShipped, {"--set=hardware.node=gpu/node.textproto"})),
      "gpu/mine-device.textproto: cannot be opened");
}

TEST_CASE("paths: a shipped scenario's name works like its path") {
  const Folder folder;
  const Outcome by_name = succeeded(run_from(folder, folder.path(), one_session("coding_agents_small", {})));
  CHECK(after(by_name.out, "decisions=") ==
        after(run_kvtwin(folder, one_session(kShipped, {})).out, "decisions="));
  CHECK(by_name.printed("repeat: kvtwin run coding_agents_small --set"));
  const std::vector<Words> good = {
      {"explain", "methods/dense", "--shape=decodes=1,context=64"},
      {"sweep", "coding_agents_small", "--vary=seed=1", "--dry-run", "--out=" + folder.file("s")},
      {"sweep", "studies/requests_and_gpus.sweep", "--dry-run", "--out=" + folder.file("s")},
  };
  for (const Words& words : good) {
    CAPTURE(words.front());
    const Outcome outcome = succeeded(run_from(folder, folder.path(), words));
  }
  // A file takes precedence over a name.
  folder.write("coding_agents_small", "model { nam: \"x\" }\n");
  const Outcome file = run_from(folder, folder.path(), {"run", "coding_agents_small"});
  CHECK_MESSAGE(file.said("coding_agents_small:1:9: no field \"nam\""), file.err);
}

TEST_CASE("paths: every shipped scenario that kvtwin list names is found by that name") {
  const Folder folder;
  const Outcome list = succeeded(run_kvtwin(folder, {"list", "scenarios"}));
  std::istringstream lines(list.out);
  size_t names = 0;
  for (std::string line; std::getline(lines, line); ++names) {
    const std::string name = line.substr(0, line.find(' '));
    if (names % 20 != 0) continue;  // each name is a process
    const Outcome outcome =
        run_from(folder, folder.path(), {"run", name, "--no-write", "--set=limits.requests_max=0"});
    CHECK(outcome.status == 2);
    CHECK_MESSAGE(!outcome.said("is neither a file nor a shipped scenario"), outcome.err);
  }
  CHECK(names > 100);
  // Files that scenarios refer to are not listed; descriptions need no data.
  CHECK(!list.printed("triaxial_tags"));
  CHECK(!list.printed("does not exist"));
  CHECK(!list.printed("trace.path is missing"));
}

TEST_CASE("paths: a damaged archive and a trace that is given as a scenario are recognised") {
  const Folder folder;
  const std::string xz = folder.write("requests.jsonl.xz", std::string("\xfd"
                                                                       "7zXZ\0more",
                                                                       10));
  CHECK(run_kvtwin(folder, {"trace", "inspect", xz}).said("requests.jsonl.xz: cannot be decompressed"));
  const std::string mooncake =
      folder.write("m.jsonl", R"({"timestamp":0,"input_length":20,"output_length":3,"hash_ids":[1]})"
                              "\n");
  CHECK(run_kvtwin(folder, {"run", mooncake}).err_lines() == 1);
  // The command of the message works.
  succeeded(run_kvtwin(folder, {"run", "coding_agents_small", "--quiet", "--no-write",
                                "--set=trace.path=" + mooncake, "--set=trace.format=mooncake"}));
}

TEST_CASE("paths: only a full disk is reported as one") {
  const Folder folder;
  const std::string run = folder.file("r");
  succeeded(run_kvtwin(folder, {"run", kShipped, "--quiet", "--set=replay.sessions_max=1", "--out=" + run}));
  const std::string long_name = std::string(250, 'p') + ".md";
  const Outcome report = run_kvtwin(folder, {"report", run, "--out=" + folder.file(long_name)});
  CHECK(report.status == 3);
  CHECK_MESSAGE(report.said("p.md: cannot be written: File name too long; check the folder"), report.err);
}

TEST_CASE("paths: kernel times are not imported into a folder with other files") {
  const Folder folder;
  const std::string both = Folder::read_any(std::string(KVTWIN_SOURCE_DIR) + "/tests/fuzz/vidur_fuzz/small");
  const size_t cut = both.find("\n\n");
  folder.write("vidur/mlp.csv", both.substr(0, cut));
  folder.write("vidur/attention.csv", both.substr(cut + 2));
  folder.write(
      "four.textproto",
      "name: \"four\" source: \"test\" layers: 2 query_heads: 4 kv_heads: 2 head_dim: 16 hidden: 64\n"
      "intermediate: 256 vocab: 1000 context_window: 4096 rope { theta: 10000 }\n"
      "weights { dtype: BF16 } kv { dtype: BF16 }\n");
  const auto import = [&](const Words& more) {
    return run_kvtwin(folder, Words{"import", folder.file("vidur"),
                                    "--model=" + folder.file("four.textproto"), "--out=" + folder.file("p")} +
                                  more);
  };
  const Outcome first = succeeded(import({}));
  succeeded(import({}));  // a repetition is accepted
  folder.write("p/tp1/skew.csv", "of another profile");
  folder.write("p/notes.txt", "mine");
  const Outcome refused = import({});
  CHECK(refused.status == 2);
  CHECK_MESSAGE(refused.said("which this import did not write; another --out; --force replaces"),
                refused.err);
  CHECK(folder.has("p/tp1/skew.csv"));
  fs::remove(folder.file("p/notes.txt"));
  CHECK(import({"--gpu=other"}).status == 2);
  folder.write("p/notes.txt", "mine");
  const Outcome forced = succeeded(import({"--force"}));
  CHECK(!folder.has("p/tp1/skew.csv"));
  CHECK(folder.has("p/tp1/dense.csv"));
  CHECK(folder.read("p/notes.txt") == "mine");
}
