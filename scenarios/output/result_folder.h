// The folder that a run's result is in: how it is replaced as a whole, and read.

#ifndef KVTWIN_SCENARIOS_OUTPUT_RESULT_FOLDER_H_
#define KVTWIN_SCENARIOS_OUTPUT_RESULT_FOLDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "traces/proto/run.pb.h"

namespace kvtwin {

// The format of results that this version writes and reads.
inline constexpr uint32_t kResultSchema = 1;

struct RunFile {
  std::string name;
  std::string bytes;
};

// Writes each file under a temporary name first, so that what bears the right name is whole. An error
// here is the environment's (exit status 3).
Result<void> write_files(const std::string& dir, const std::vector<RunFile>& files);

// Whether a run of `inputs` may take the place of what `dir` holds: no result, one of the same inputs, or
// `force`.
Result<void> check_replaceable(const std::string& dir, uint64_t inputs, bool force);

// Puts a run's files into `dir` in place of an earlier run's, so that `dir` never holds files of two. The
// files are written to a folder beside it, and the two change places: a crash leaves the old result or the
// new one. Files that no run writes stay; where there are any, the folder itself stays too, and a crash may
// leave no result. An error here is the environment's.
Result<void> replace_run(const std::string& dir, const std::vector<RunFile>& files);

// The result that a directory holds.
Result<v1::RunResult> read_result(const std::string& dir);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_OUTPUT_RESULT_FOLDER_H_
