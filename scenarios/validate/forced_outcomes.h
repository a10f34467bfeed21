// The retained counts of a recorded run, written as a recording that a simulation can follow
// (simulation.retained: "recorded"). A run with forced outcomes must be simulated with the same outcomes:
// draws with another key or seed would be another run's.

#ifndef KVTWIN_SCENARIOS_VALIDATE_FORCED_OUTCOMES_H_
#define KVTWIN_SCENARIOS_VALIDATE_FORCED_OUTCOMES_H_

#include <string>

#include "engine/base/result.h"
#include "engine/recorder/recorder_log.h"

namespace kvtwin {

// The bytes of outcomes.binpb; empty if no compression of the run awaited an outcome. `name` is used in
// messages.
Result<std::string> retained_outcomes(const std::string& name, const Log& log);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_VALIDATE_FORCED_OUTCOMES_H_
