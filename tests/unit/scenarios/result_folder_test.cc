// Files of a result: processes that write the same ones, and drafts of processes that were killed.

#include "scenarios/output/result_folder.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "models/files/textproto.h"
#include "tests/support/temp_directory.h"

using namespace kvtwin;
namespace fs = std::filesystem;

TEST_CASE("write_files: processes that write one file concurrently all succeed, and leave one whole file") {
  const std::string dir = testing::make_temp_directory("result");
  const std::string bytes(20'000, 'x');
  std::vector<pid_t> writers;
  for (int writer = 0; writer < 4; ++writer) {
    const pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      bool ok = true;
      for (int i = 0; i < 200; ++i) ok = ok && write_files(dir, {{"a.json", bytes}, {"b.csv", bytes}});
      _exit(ok ? 0 : 1);
    }
    writers.push_back(pid);
  }
  for (const pid_t pid : writers) {
    int status = -1;
    REQUIRE(waitpid(pid, &status, 0) == pid);
    CHECK(status == 0);
  }
  for (const char* const name : {"a.json", "b.csv"}) {
    const Result<std::string> text = read_text_file(dir + "/" + name);
    REQUIRE(text);
    CHECK(*text == bytes);
  }
  CHECK(std::distance(fs::directory_iterator(dir), fs::directory_iterator()) == 2);  // no temporary file
  fs::remove_all(dir);
}

TEST_CASE(
    "replace_run: drafts of processes that no longer run are removed, also if their number is used again") {
  const fs::path dir = testing::make_temp_directory("result"), run = dir / "run";
  const std::string here = std::to_string(getpid());
  // Of this process's number, but started at another time; of a number that no process has; of another
  // program.
  const std::string dead = run.string() + ".kvtwin-run-" + here + "-1",
                    none = run.string() + ".kvtwin-run-999999999-1",
                    other = run.string() + ".kvtwin-run-mine";
  for (const std::string& draft : {dead, none, other}) fs::create_directories(draft);
  REQUIRE(replace_run(run.string(), {{"requests.csv", "a"}, {"run.binpb", "b"}}));
  CHECK(!fs::exists(dead));
  CHECK(!fs::exists(none));
  CHECK(fs::exists(other));
  CHECK(fs::exists(run / "run.binpb"));
  CHECK(std::distance(fs::directory_iterator(dir), fs::directory_iterator()) == 2);
  fs::remove_all(dir);
}
