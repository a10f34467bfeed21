// Recordings of real runs: DIR/SCENARIO/REPEAT/ with log.binpb (engine/recorder/recorder.h), run.binpb (the
// result) and, where steps recall pages themselves, outcomes.binpb (engine/recorder/recorder_outcomes.h: what
// values decided).

#ifndef KVTWIN_SCENARIOS_VALIDATE_RECORDINGS_H_
#define KVTWIN_SCENARIOS_VALIDATE_RECORDINGS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "scenarios/load/scenario.h"
#include "scenarios/validate/validation.h"

namespace kvtwin {

// `kvtwin run SCENARIO WORDS...`, in a process of its own, into folder `out`: the simulator runs once in a
// process, and a run that fails is only its own. Its messages go to `errors`. Settings may be unread: see
// check_sets_read(). Errors: how it failed.
Result<void> run_apart(const std::string& scenario, const std::vector<std::string>& sets,
                       const std::vector<std::string>& words, const std::string& errors,
                       const std::string& out);

// Every one of `sets` is read by the real run, on `backend` under `clock`, or by the simulated one, of a
// scenario at least. Scenarios that are wrong are not this function's finding.
Result<void> check_sets_read(const std::vector<std::string>& scenarios, const std::vector<std::string>& sets,
                             const std::string& backend, const std::string& clock);

// `sets`, and fewer GPU pages where the scenario gives more than its GPU has room for (memory_model.h): a
// scenario written on a large GPU then runs on a small one. Errors: of the scenario.
Result<std::vector<std::string>> sets_that_fit(const std::string& scenario,
                                               const std::vector<std::string>& sets,
                                               const std::function<void(const std::string&)>& progress);

struct RecordRequest {
  std::string scenario;  // file
  std::vector<std::string> sets;
  std::string backend = "cuda", clock = "wall";
  uint32_t repeat = 1;  // its folder's name
  std::string to;       // the scenario's folder of recordings
  std::string work;     // folder for what is not kept; it must exist
  std::function<void(const std::string&)> progress{};
};
// Runs the scenario. `name`: of it, for messages.
Result<void> record(const RecordRequest& request, const std::string& name);

Result<Recording> read_recording(const std::string& path, const std::string& repeat);
// All repeats in a scenario's folder, by name.
Result<std::vector<Recording>> read_recordings(const std::string& dir);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_VALIDATE_RECORDINGS_H_
