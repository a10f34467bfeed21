// A pool of child processes: each runs one command, in order of start; a crash is that command's alone.

#ifndef KVTWIN_SCENARIOS_SWEEP_POOL_H_
#define KVTWIN_SCENARIOS_SWEEP_POOL_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/result.h"

namespace kvtwin {

struct Job {
  std::vector<std::string> words;  // after the program's name
  std::string errors;              // the file that gets its stderr; stdout is dropped
  size_t lane = 0;                 // of those that run_jobs() is told of
};

struct JobEnd {
  size_t job = 0;
  int status = 0;  // of exit; 128 + the signal that ended it
};

// Runs all jobs with `program`, of each lane at most `at_once[lane]` at a time. `ended` returns false to
// start no more. Children die with this process. Error: no process can be started. REQUIRES: every job's
// lane is there, and has room for one.
Result<void> run_jobs(const std::string& program, const std::vector<Job>& jobs,
                      const std::vector<uint32_t>& at_once, const std::function<bool(const JobEnd&)>& ended);

// This program.
std::string own_program();

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_SWEEP_POOL_H_
