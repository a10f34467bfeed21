// Records real runs where asked to, replays recordings, simulates, and compares (validation.h).

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
  std::vector<std::string> sets;                 // as kvtwin run has them
  std::string recordings;                        // folder: DIR/SCENARIO/REPEAT
  bool record = false;                           // first make them, on this machine
  std::string backend = "cuda", clock = "wall";  // to be recorded
  uint32_t repeats = 3;
  std::string work;  // folder for what is simulated and for messages of runs; it must exist
  std::vector<KnownDeviation> known;
  std::function<void(const std::string&)> progress{};
};

// Every real and every simulated run is a process of its own (this program's `run`): the simulator runs once
// in a process, and a run that fails is only its own. Errors: of scenarios, recordings, or the first run
// that failed.
Result<Validation> run_validation(const ValidateRequest& request);

// Of a KnownDeviations textproto.
Result<std::vector<KnownDeviation>> parse_known_deviations(std::string_view text, const std::string& where);

// What steps of a recorded run are priced by. All must outlive it.
StepPricing step_pricing(const Composed& composed, const RetrievalSetup& retrieving,
                         const Recording& recording);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_VALIDATE_RUN_VALIDATION_H_
