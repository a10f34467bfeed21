// Runs the built kvtwin, and returns its output, its status and its peak memory.

#ifndef KVTWIN_TESTS_CLI_PROGRAM_H_
#define KVTWIN_TESTS_CLI_PROGRAM_H_

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/folder.h"
#include "tests/support/source_dir.h"

namespace kvtwin::testing {

struct Outcome {
  int status = -1;  // exit status; 128 + the signal that ended it
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

// The words of a run of scenarios/methods/<method>.
inline std::vector<std::string> method_words(const std::string& method,
                                             const std::vector<std::string>& more) {
  std::vector<std::string> words = {"run", source_dir() + "/scenarios/methods/" + method + ".textproto",
                                    "--quiet"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// The word after `name`, without spaces. REQUIRES: `name` is present.
inline std::string after(const std::string& text, const std::string& name) {
  const size_t at = text.find(name);
  REQUIRE_MESSAGE(at != std::string::npos, text);
  const size_t begin = text.find_first_not_of(' ', at + name.size());
  return text.substr(begin, text.find_first_of(" \"\n", begin) - begin);
}

// The number after "key": in one line of JSON; -1 if absent.
inline double json_number(const std::string& json, const std::string& key) {
  const size_t at = json.find("\"" + key + "\":");
  return at == std::string::npos ? -1 : std::stod(json.substr(at + key.size() + 3));
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_CLI_PROGRAM_H_
