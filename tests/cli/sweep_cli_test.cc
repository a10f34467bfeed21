// A sweep on the command line: killed, resumed, repeated, sharded, on a full disk, over damaged results.

#include <signal.h>
#include <sqlite3.h>
#include <sys/file.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "tests/cli/program.h"

using namespace kvtwin::testing;
namespace fs = std::filesystem;

namespace {

const std::string kScenario =
    std::string(KVTWIN_SOURCE_DIR) + "/scenarios/shipped/coding_agents_small.textproto";

Words words_of(const Folder& folder, Words more) {
  return Words{"sweep", kScenario, "--out=" + folder.file("s")} + more;
}

// Starts it without waiting.
pid_t begin_kvtwin(Words words) {
  std::string program = KVTWIN_PROGRAM;
  std::vector<char*> arguments = {program.data()};
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t child = fork();
  if (child != 0) return child;
  dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
  dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
  execv(program.c_str(), arguments.data());
  _exit(127);
}

std::vector<nlohmann::json> lines_of(const std::string& text) {
  std::vector<nlohmann::json> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(nlohmann::json::parse(line));
  return out;
}

int64_t query(const std::string& base, const char* sql) {
  sqlite3* db = nullptr;
  REQUIRE(sqlite3_open(base.c_str(), &db) == SQLITE_OK);
  sqlite3_stmt* statement = nullptr;
  REQUIRE(sqlite3_prepare_v2(db, sql, -1, &statement, nullptr) == SQLITE_OK);
  REQUIRE(sqlite3_step(statement) == SQLITE_ROW);
  const int64_t value = sqlite3_column_int64(statement, 0);
  sqlite3_finalize(statement);
  sqlite3_close(db);
  return value;
}

size_t points_done(const Folder& folder) {
  size_t done = 0;
  std::error_code none_yet;
  for (const auto& entry : fs::directory_iterator(folder.file("s/points"), none_yet))
    done += fs::exists(entry.path() / "run.binpb") ? 1 : 0;
  return done;
}

const Words kGrid = {"--vary=limits.requests_max=4..64*2", "--vary=memory.gpu_pages=5000..12000+1000"};
constexpr size_t kPoints = 40;

}  // namespace

TEST_CASE("sweep: killed five times, no point is lost or duplicated; afterwards all locks are free") {
  Folder folder;
  Words grid = kGrid;
  grid.push_back("--format=jsonl");
  size_t survived = 0;
  for (const int delay_ms : {0, 23, 5, 41, 12}) {
    const pid_t child = begin_kvtwin(words_of(folder, grid));
    const size_t before = survived;
    for (int i = 0; i < 3000 && survived == before; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      survived = points_done(folder);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    kill(child, SIGKILL);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    survived = points_done(folder);
  }
  MESSAGE(survived << " of " << kPoints << " points survived five kills");
  CHECK(survived >= 5);
  const Outcome end = succeeded(run_kvtwin(folder, words_of(folder, grid)));
  const auto rows = lines_of(end.out);
  REQUIRE(rows.size() == kPoints);
  std::set<std::string> keys;
  for (const auto& row : rows) {
    CHECK(row["state"] == "done");
    CHECK(row["metrics"]["requests_finished"] == 617);
    keys.insert(row["key"]);
  }
  CHECK(keys.size() == kPoints);
  size_t folders = 0;
  for (const auto& entry : fs::directory_iterator(folder.file("s/points")))
    folders += entry.is_directory() ? 1 : 0;
  CHECK(folders == kPoints);
  CHECK(query(folder.file("s/index.sqlite"), "SELECT count(*) FROM points WHERE state='done'") == kPoints);
  CHECK(query(folder.file("s/index.sqlite"),
              "SELECT count(*) FROM metrics WHERE name='requests_finished' AND value=617") == kPoints);

  const Outcome again = run_kvtwin(folder, words_of(folder, grid));
  CHECK(again.out == end.out);
  CHECK(!again.said("points, 0 failed, about"));  // nothing ran
  // One more value: only the new points run.
  grid[0] = "--vary=limits.requests_max=4..128*2";
  CHECK(lines_of(run_kvtwin(folder, words_of(folder, grid)).out).size() == kPoints + 8);
}

TEST_CASE("sweep: shards divide the points, and collecting runs none of them again") {
  Folder folder, whole;
  for (const char* shard : {"--shard=0/3", "--shard=2/3", "--shard=1/3"}) {
    Words words = kGrid;
    words.push_back(shard);
    succeeded(run_kvtwin(folder, words_of(folder, words)));
  }
  Words words = kGrid;
  words.push_back("--format=csv");
  const Outcome collected = succeeded(run_kvtwin(folder, words_of(folder, words)));
  CHECK(!collected.said("about"));
  CHECK(collected.out == run_kvtwin(whole, words_of(whole, words)).out);
}

TEST_CASE("sweep: an invalid point and a point that cannot run are rows with their errors") {
  Folder folder;
  const Outcome out =
      run_kvtwin(folder, words_of(folder, {"--vary=limits.requests_max=8,none",
                                           "--vary=memory.gpu_pages=9000,3", "--format=jsonl"}));
  CHECK(out.status == 1);
  const auto rows = lines_of(out.out);
  REQUIRE(rows.size() == 4);
  CHECK(rows[0]["state"] == "done");
  for (const size_t i : {1u, 2u, 3u}) CHECK(rows[i]["state"] == "failed");
  CHECK(std::string(rows[1]["error"]).find("pages") != std::string::npos);
  CHECK(std::string(rows[2]["error"]).find("\"none\" is not a value of limits.requests_max") !=
        std::string::npos);
}

TEST_CASE("sweep: damaged results are reported and recomputed; a damaged index is rebuilt") {
  Folder folder;
  const Words words = words_of(folder, {"--vary=limits.requests_max=4,8", "--format=jsonl"});
  const Outcome first = run_kvtwin(folder, words);
  const std::string key = lines_of(first.out)[1]["key"];
  std::ofstream(folder.file("s/points/" + key + "/run.binpb"), std::ios::trunc) << "garbage";
  std::ofstream(folder.file("s/index.sqlite"), std::ios::trunc) << std::string(5000, 'x');
  const Outcome second = succeeded(run_kvtwin(folder, words));
  CHECK(second.out == first.out);
  CHECK(second.said(key + "/run.binpb: is not a run result"));
  CHECK(second.said("it is made again from the points"));
  CHECK(query(folder.file("s/index.sqlite"), "SELECT count(*) FROM points WHERE state='done'") == 2);
}

TEST_CASE("sweep: a full disk ends it with a clear error, and no finished point is lost") {
  Folder folder;
  const Words words = words_of(folder, {"--vary=limits.requests_max=4,8,16", "--jobs=1"});
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);  // writes fail instead
    const struct rlimit limit = {60'000, 60'000};
    setrlimit(RLIMIT_FSIZE, &limit);
    _exit(run_kvtwin(folder, words).status);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WEXITSTATUS(status) == 3);
  CHECK(folder.read(".err").find("cannot be written") != std::string::npos);
  succeeded(run_kvtwin(folder, words));
}

TEST_CASE("sweep: two concurrent sweeps in one folder: the second is refused") {
  Folder folder;
  fs::create_directories(folder.file("s/points"));
  const int lock = open(folder.file("s/.lock-0-of-1").c_str(), O_RDWR | O_CREAT, 0644);
  REQUIRE(flock(lock, LOCK_EX) == 0);
  const Outcome out = run_kvtwin(folder, words_of(folder, {"--vary=limits.requests_max=4,8"}));
  close(lock);
  CHECK(out.status == 3);
  CHECK(out.said("another process runs a sweep in this folder"));
}

TEST_CASE(
    "sweep: a folder belongs to one sweep: another scenario, axis or setting is refused without --force") {
  Folder folder;
  const auto sweep = [&](Words more) {
    more.push_back("--quiet");
    return run_kvtwin(folder, words_of(folder, std::move(more)));
  };
  const std::string few = "--set=replay.sessions_max=1";
  succeeded(sweep({few, "--vary=limits.requests_max=4,8"}));
  const std::string index = folder.read("s/index.sqlite"), noted = folder.read("s/sweep.textproto");
  const std::vector<Words> others = {
      {few, "--vary=limits.step_tokens_max=512,1024"},
      {few, "--vary=limits.requests_max=4,8", "--vary=seed=1,2"},
      {"--set=replay.sessions_max=2", "--vary=limits.requests_max=4,8"},
      {few, "--vary=seed=1..9+1", "--halve=e2e_mean_ms:min", "--rungs=replay.sessions_max=1,2"},
  };
  for (const Words& words : others) {
    CAPTURE(words[1]);
    const Outcome other = sweep(words);
    CHECK(other.status == 2);
    CHECK_MESSAGE(other.said("s: belongs to another sweep: coding_agents_small over limits.requests_max with "
                             "replay.sessions_max=1; another --out; --force"),
                  other.err);
  }
  const Outcome scenario = run_kvtwin(
      folder, {"sweep", std::string(KVTWIN_SOURCE_DIR) + "/scenarios/shipped/search_tiny.textproto", few,
               "--quiet", "--vary=limits.requests_max=4,8", "--out=" + folder.file("s")});
  CHECK(scenario.status == 2);
  CHECK(points_done(folder) == 2);
  CHECK(folder.read("s/index.sqlite") == index);
  CHECK(folder.read("s/sweep.textproto") == noted);
  // The same sweep: another path to the scenario, more values, fewer, a shard, a sample.
  succeeded(run_kvtwin(folder, {"sweep", "coding_agents_small", few, "--quiet",
                                "--vary=limits.requests_max=4,8,16", "--out=" + folder.file("s")}));
  succeeded(sweep({few, "--vary=limits.requests_max=8,32", "--shard=1/2"}));
  succeeded(sweep({few, "--vary=limits.requests_max=1..64", "--samples=2"}));
  const Outcome forced = succeeded(sweep({few, "--vary=limits.step_tokens_max=512,1024", "--force"}));
  CHECK(query(folder.file("s/index.sqlite"), "SELECT count(*) FROM points") == 2);
  CHECK(sweep({few, "--vary=limits.requests_max=4,8"}).status == 2);
}

TEST_CASE("sweep: without --out its folder is named after the sweep; json is one list") {
  Folder folder;
  const auto before = fs::current_path();
  fs::current_path(folder.path());
  const auto sweep = [&](const std::string& vary) {
    return run_kvtwin(folder, {"sweep", kScenario, "--set=replay.sessions_max=1", vary, "--format=json"});
  };
  const Outcome first = sweep("--vary=limits.requests_max=4,8"),
                longer = sweep("--vary=limits.requests_max=4,8,16"), other = sweep("--vary=seed=1,2");
  fs::current_path(before);
  REQUIRE_MESSAGE(first.status == 0, first.err);
  CHECK(nlohmann::json::parse(first.out).size() == 2);
  CHECK(nlohmann::json::parse(longer.out)[2]["axes"]["limits.requests_max"] == "16");
  CHECK(after(first.err, "; in ") == after(longer.err, "; in "));
  CHECK(after(first.err, "; in ") != after(other.err, "; in "));
  CHECK(after(first.err, "; in ").starts_with("out/sweep-"));
}

TEST_CASE("sweep: halving runs all points at low cost, and the best in full") {
  Folder folder;
  const Outcome out = succeeded(
      run_kvtwin(folder, words_of(folder, {"--vary=limits.requests_max=1..9+1", "--halve=e2e_mean_ms:min",
                                           "--rungs=replay.sessions_max=2,6,24", "--format=jsonl"})));
  const auto rows = lines_of(out.out);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0]["metrics"]["sessions"] == 24);
  CHECK(out.said("replay.sessions_max=2: 3 of 9 points continue"));
  CHECK(out.said("replay.sessions_max=6: 1 of 3 points continue"));
  CHECK(points_done(folder) == 9 + 3 + 1);
}

TEST_CASE("sweep: a file has the same meaning as the command line") {
  Folder folder;
  std::ofstream(folder.file("s.sweep.textproto"))
      << "scenario: \"" << kScenario
      << "\"\nvary: \"limits.requests_max=4,8\"\nset: \"replay.sessions_max=2\"\n"
      << "samples: 0 columns: \"steps\"\n";
  const auto sweep = [&](Words more) {
    return run_kvtwin(folder,
                      Words{"sweep", folder.file("s.sweep.textproto"), "--out=" + folder.file("f")} + more);
  };
  const Outcome by_file = succeeded(sweep({"--format=jsonl"}));
  const Outcome by_words = run_kvtwin(
      folder,
      words_of(folder, {"--vary=limits.requests_max=4,8", "--set=replay.sessions_max=2", "--format=jsonl"}));
  CHECK(by_file.out == by_words.out);
  CHECK(sweep({"--vary=seed=1,2", "--format=jsonl", "--force"}).said("4 points"));
  std::ofstream(folder.file("s.sweep.textproto")) << "scenario: \"x\"\nvari: \"a=1\"\n";
  CHECK(sweep({}).said("s.sweep.textproto:2:"));
}

TEST_CASE("sweep: a changed default, price or rate makes new points; writing a default out does not") {
  Folder folder;
  const auto keys = [&](Words more) {
    more.push_back("--vary=limits.requests_max=4");
    more.push_back("--dry-run");
    more.push_back("--format=jsonl");
    const Outcome out = run_kvtwin(folder, words_of(folder, more));
    const auto rows = lines_of(out.out);
    REQUIRE_MESSAGE(rows.size() == 1, out.err);
    return rows[0]["key"].get<std::string>();
  };
  const std::string as_it_is = keys({});
  CHECK(keys({"--set=limits.evict_batch_pages=64"}) == as_it_is);  // the default
  CHECK(keys({"--set=limits.evict_batch_pages=65"}) != as_it_is);
  CHECK(keys({"--set=engines.prefill=0"}) == as_it_is);
  CHECK(keys({"--set=name=other"}) == as_it_is);
  fs::copy(std::string(KVTWIN_SOURCE_DIR) + "/models", folder.file("models"), fs::copy_options::recursive);
  setenv("KVTWIN_MODELS", folder.file("models").c_str(), 1);
  CHECK(keys({}) == as_it_is);
  std::ofstream(folder.file("models/device/h200.textproto"), std::ios::app) << "# another price\n";
  CHECK(keys({}) != as_it_is);
  unsetenv("KVTWIN_MODELS");
}
