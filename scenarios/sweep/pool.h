// A pool of child processes. Each runs one command; commands start in order, and a crash affects its own
// command only.

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
  std::string errors;              // the file that receives its stderr; stdout is discarded
  size_t lane = 0;                 // index into run_jobs()'s at_once
};

struct JobEnd {
  size_t job = 0;
  int status = 0;  // exit status; 128 + the number of the signal that ended it
};

// Runs all jobs with `program`, at most `at_once[lane]` of each lane concurrently. `ended` returns false to
// start no more jobs. The kernel kills the children when this process dies. Error: no process can be started.
// REQUIRES: job.lane < at_once.size() and at_once[lane] >= 1 for every job.
Result<void> run_jobs(const std::string& program, const std::vector<Job>& jobs,
                      const std::vector<uint32_t>& at_once, const std::function<bool(const JobEnd&)>& ended);

// The path of this program.
std::string own_program();

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_SWEEP_POOL_H_
