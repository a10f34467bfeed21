// Runs the built kvtwin, and returns its output, its status and its peak memory. Messages of errors are
// tested by bad_inputs.txt; a test here is about what a command does.

#ifndef KVTWIN_TESTS_CLI_PROGRAM_H_
#define KVTWIN_TESTS_CLI_PROGRAM_H_

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <sstream>
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
  bool printed(const std::string& part) const { return out.find(part) != std::string::npos; }
};

using Words = std::vector<std::string>;
inline Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

inline Outcome run_kvtwin(const Folder& folder, const Words& words) {
  const std::string out = folder.file(".out"), err = folder.file(".err");
  Words copy = words;
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

// Runs kvtwin in a shell whose working directory is `folder`. Words may be quoted, and output redirected.
inline Outcome run_in_shell(const Folder& folder, const std::string& words) {
  const std::string out = folder.file(".out"), err = folder.file(".err");
  const std::string command = "cd '" + folder.path() + "' && >'" + out + "' 2>'" + err + "' timeout 120 '" +
                              KVTWIN_PROGRAM + "' " + words;
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, Folder::read_any(out), Folder::read_any(err), 0};
}

inline Outcome succeeded(const Outcome& outcome) {
  REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
  return outcome;
}

inline void check_refused(const Outcome& outcome, const std::string& message) {
  CAPTURE(message);
  CHECK(outcome.status == 2);
  CHECK_MESSAGE(outcome.said(message), outcome.err);
}

// The words of a run of scenarios/methods/<method>.
inline Words method_words(const std::string& method, const Words& more) {
  return Words{"run", source_dir() + "/scenarios/methods/" + method + ".textproto", "--quiet"} + more;
}

// Rows of a CSV whose fields contain no commas, by the names of its first line.
using CsvRow = std::map<std::string, std::string>;
inline std::vector<CsvRow> csv_rows(const std::string& csv) {
  const auto fields_of = [](const std::string& line) {
    Words fields;
    std::istringstream in(line);
    for (std::string field; std::getline(in, field, ',');) fields.push_back(field);
    return fields;
  };
  std::istringstream lines(csv);
  std::string line;
  std::getline(lines, line);
  const Words names = fields_of(line);
  std::vector<CsvRow> rows;
  while (std::getline(lines, line)) {
    Words fields = fields_of(line);
    fields.resize(names.size());  // the last may be empty
    CsvRow& row = rows.emplace_back();
    for (size_t i = 0; i < names.size(); ++i) row[names[i]] = fields[i];
  }
  return rows;
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
