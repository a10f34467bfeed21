// The folder of a run's result: replacing it as a whole, and reading it.

#ifndef KVTWIN_SCENARIOS_OUTPUT_RESULT_FOLDER_H_
#define KVTWIN_SCENARIOS_OUTPUT_RESULT_FOLDER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "traces/proto/run.pb.h"

namespace kvtwin {

// The version of the result format that this program writes and reads.
inline constexpr uint32_t kResultSchema = 1;

// No result has this fingerprint of inputs.
inline constexpr uint64_t kNoFingerprint = UINT64_MAX;

struct RunFile {
  std::string name;
  std::string bytes;
};

// Writes each file under a temporary name and renames it, so that a file under its final name is complete. An
// error here is an environment failure (exit status 3).
Result<void> write_files(const std::string& dir, const std::vector<RunFile>& files);

// Succeeds if a run of `inputs` may replace the content of `dir`: `dir` has no result or one of the same
// inputs, or `force` is set. A file that is not a run's has kNoFingerprint.
Result<void> check_replaceable(const std::string& dir, uint64_t inputs, bool force);

// Replaces the files of an earlier run in `dir`, so that `dir` never holds files of two runs. The files are
// written to a folder next to it, and the two folders are exchanged: a crash leaves the old result or the new
// one. Files that no run writes stay; if there are any, the folder itself stays too, and a crash may leave no
// result. An error here is an environment failure.
Result<void> replace_run(const std::string& dir, const std::vector<RunFile>& files);

// A process that is killed while it replaces a run leaves its files: FOLDER.kvtwin-run-PID-START. This
// removes those in `parent` whose process has ended, for each FOLDER that `of` accepts. Accept only folders
// that no other machine writes: whether a process of another machine runs is not visible.
void remove_stale_drafts(const std::string& parent, const std::function<bool(std::string_view)>& of);

// Reads the result in a directory.
Result<v1::RunResult> read_result(const std::string& dir);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_OUTPUT_RESULT_FOLDER_H_
