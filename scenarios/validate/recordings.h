// Recordings of real runs: DIR/SCENARIO/REPEAT/ with log.binpb (engine/recorder/recorder.h), run.binpb (the
// result) and, where steps recall pages themselves, outcomes.binpb (data-dependent outcomes,
// engine/recorder/recorder_outcomes.h).

#ifndef KVTWIN_SCENARIOS_VALIDATE_RECORDINGS_H_
#define KVTWIN_SCENARIOS_VALIDATE_RECORDINGS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "scenarios/load/scenario.h"
#include "scenarios/validate/validation.h"

namespace kvtwin {

// Runs `kvtwin run SCENARIO WORDS...` with output to folder `out` in a process of its own, because the
// simulator can run only once per process, and to isolate failures. Its messages go to file `errors`. Unread
// settings are allowed: see check_sets_read(). Errors: how the run failed.
Result<void> run_apart(const std::string& scenario, const std::vector<std::string>& sets,
                       const std::vector<std::string>& words, const std::string& errors,
                       const std::string& out);

// Checks that each of `sets` is read by the real run, on `backend` under `clock`, or by the simulated one, of
// at least one scenario. Invalid scenarios are not reported here.
Result<void> check_sets_read(const std::vector<std::string>& scenarios, const std::vector<std::string>& sets,
                             const std::string& backend, const std::string& clock);

// `sets`, and fewer GPU pages where the scenario gives more than its GPU has room for (memory_model.h): a
// scenario written on a large GPU then runs on a small one. Errors: of the scenario.
Result<std::vector<std::string>> sets_that_fit(const std::string& scenario,
                                               const std::vector<std::string>& sets,
                                               const std::function<void(const std::string&)>& progress);

// Recordings are of the GPU that made them, whatever machine reads them: DIR/gpu.txt has its name, and "this"
// in a scenario (scenarios/load/gpu_at_hand.h) stands for it from now on. To be called before anything is
// recorded to, or read from, `dir`. Errors: the file cannot be written; DIR has runs of another GPU.
Result<void> take_gpu_of(const std::string& dir, bool record);

// Whether this build and this machine can run scenarios on a GPU: recordings are not begun otherwise.
Result<void> check_can_record(const std::string& command);

struct RecordRequest {
  std::string scenario;  // file
  std::vector<std::string> sets;
  std::string backend = "cuda", clock = "wall";
  uint32_t repeat = 1;  // name of the repeat's folder
  std::string to;       // the scenario's folder of recordings
  std::string work;     // folder for temporary files; it must exist
  std::function<void(const std::string&)> progress{};
};
// Runs the scenario and stores the recording. `name` is the scenario's name in messages.
Result<void> record(const RecordRequest& request, const std::string& name);

Result<Recording> read_recording(const std::string& path, const std::string& repeat);
// All repeats in a scenario's folder, ordered by name.
Result<std::vector<Recording>> read_recordings(const std::string& dir);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_VALIDATE_RECORDINGS_H_
