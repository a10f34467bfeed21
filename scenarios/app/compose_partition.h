// What a partition is priced by (sim/clock/partition_price.h), where head groups of a scenario differ in
// length.

#ifndef KVTWIN_SCENARIOS_APP_COMPOSE_PARTITION_H_
#define KVTWIN_SCENARIOS_APP_COMPOSE_PARTITION_H_

#include <optional>

#include "scenarios/app/compose.h"
#include "sim/clock/partition_price.h"

namespace kvtwin {

// Nothing where heads are alike (unless the scenario asks for it), or where each step chooses what it reads:
// then all heads read as much.
std::optional<sim::PartitionPriceSpec> partition_price_spec(const Scenario& scenario,
                                                            const Composed& composed);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_APP_COMPOSE_PARTITION_H_
