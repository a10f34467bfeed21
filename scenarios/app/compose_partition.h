// The inputs of the attention partition's price (sim/clock/partition_price.h) for scenarios whose head groups
// differ in length.

#ifndef KVTWIN_SCENARIOS_APP_COMPOSE_PARTITION_H_
#define KVTWIN_SCENARIOS_APP_COMPOSE_PARTITION_H_

#include <optional>

#include "scenarios/app/compose.h"
#include "sim/clock/partition_price.h"

namespace kvtwin {

// Nullopt where all heads have equal length (unless the scenario asks for the price), and where each step
// chooses the pages that it reads, because all heads then read the same amount.
std::optional<sim::PartitionPriceSpec> partition_price_spec(const Scenario& scenario,
                                                            const Composed& composed);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_APP_COMPOSE_PARTITION_H_
