// Derives the cost of compressions (models/cost/compression_cost.h) from a scenario's scorer, budget and
// layout.

#ifndef KVTWIN_SCENARIOS_APP_COMPRESSION_WORK_H_
#define KVTWIN_SCENARIOS_APP_COMPRESSION_WORK_H_

#include <optional>

#include "engine/methods/config.h"
#include "models/cost/compression_cost.h"
#include "scenarios/load/scenario.h"

namespace kvtwin {

// Work on one GPU. Nullopt: nothing is ever compressed, or cost.compressions is "free".
std::optional<CompressionWork> compression_work(const Scenario& scenario, const LlmSpec& llm,
                                                const CoreConfig& config);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_APP_COMPRESSION_WORK_H_
