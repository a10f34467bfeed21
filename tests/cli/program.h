// Runs the kvtwin that was just built, and keeps what it said, its status and its peak memory.

#ifndef KVTWIN_TESTS_CLI_PROGRAM_H_
#define KVTWIN_TESTS_CLI_PROGRAM_H_

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace kvtwin::testing {

// A directory of its own that goes away.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "kvtwin_cli_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return file(name);
  }
  std::string read(const std::string& name) const { return read_any(path_ / name); }
  static std::string read_any(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  bool has(const std::string& name) const { return std::filesystem::exists(path_ / name); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

struct Outcome {
  int status = -1;  // of exit; 128 + the signal that ended it
  std::string out, err;
  uint64_t peak_bytes = 0;  // resident

  size_t err_lines() const { return static_cast<size_t>(std::count(err.begin(), err.end(), '\n')); }
  bool said(const std::string& part) const { return err.find(part) != std::string::npos; }
};

inline Outcome run_kvtwin(const Folder& folder, const std::vector<std::string>& words) {
  const std::string out = folder.file(".out"), err = folder.file(".err");
  std::vector<std::string> copy = words;
  std::string program = KVTWIN_PROGRAM;
  std::vector<char*> arguments = {program.data()};
  for (std::string& word : copy) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
    dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    execv(program.c_str(), arguments.data());
    _exit(127);
  }
  int status = 0;
  struct rusage usage = {};
  REQUIRE(wait4(child, &status, 0, &usage) == child);
  Outcome outcome;
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.out = folder.read(".out");
  outcome.err = folder.read(".err");
  outcome.peak_bytes = static_cast<uint64_t>(usage.ru_maxrss) << 10;  // Linux counts KiB
  return outcome;
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_CLI_PROGRAM_H_
