// The inputs of the attention partition's price (sim/clock/partition_price.h) for scenarios whose head groups
// differ in length.

#ifndef KVTWIN_SCENARIOS_APP_COMPOSE_PARTITION_H_
#define KVTWIN_SCENARIOS_APP_COMPOSE_PARTITION_H_

#include <optional>
#include <vector>

#include "scenarios/app/compose.h"
#include "sim/clock/partition_price.h"

namespace kvtwin {

// The fractions of ranked tokens that AOT's offline part plans each head's row with, by layer * kv_heads +
// head: the largest budget of the head's group, in any layer, or the mean of its group in this layer (whose
// sum is Algorithm 1's weight). Empty: the budget does not distinguish heads.
std::vector<Fraction> planned_fractions(const PolicySet& set, const PartitionSpec& spec);

// Nullopt where all heads have equal length (unless the scenario asks for the price), and where each step
// chooses the pages that it reads, because all heads then read the same amount.
std::optional<sim::PartitionPriceSpec> partition_price_spec(const Scenario& scenario,
                                                            const Composed& composed);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_APP_COMPOSE_PARTITION_H_
