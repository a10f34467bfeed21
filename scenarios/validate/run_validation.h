// Records real runs if requested, replays recordings, simulates, and compares (validation.h).

#ifndef KVTWIN_SCENARIOS_VALIDATE_RUN_VALIDATION_H_
#define KVTWIN_SCENARIOS_VALIDATE_RUN_VALIDATION_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "scenarios/app/compose_retrieving.h"
#include "scenarios/validate/validation.h"

namespace kvtwin {

struct ValidateRequest {
  std::vector<std::string> scenarios;            // files
  std::vector<std::string> sets;                 // as in kvtwin run
  std::string recordings;                        // folder: DIR/SCENARIO/REPEAT
  bool record = false;                           // make the recordings first, on this machine
  std::string backend = "cuda", clock = "wall";  // of the real runs
  uint32_t repeats = 3;
  std::string work;  // folder for simulated runs and messages; it must exist
  std::vector<KnownDeviation> known;
  std::function<void(const std::string&)> progress{};
};

// Every real and every simulated run is a process of its own (this program's `run`): the simulator can run
// only once per process, and failures are isolated. Errors: of scenarios, recordings, or the first run that
// failed.
Result<Validation> run_validation(const ValidateRequest& request);

// Parses a KnownDeviations textproto.
Result<std::vector<KnownDeviation>> parse_known_deviations(std::string_view text, const std::string& where);

// The inputs of a recorded run's step prices. All arguments must outlive the result.
StepPricing step_pricing(const Composed& composed, const RetrievalSetup& retrieving,
                         const Recording& recording);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_VALIDATE_RUN_VALIDATION_H_
