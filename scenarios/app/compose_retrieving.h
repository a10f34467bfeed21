// The prices of in-step retrieval in simulated engines. Where every step reads the whole context there are
// none, unless a StepWatcher is attached: then a step graph prices the steps at the same total.

#ifndef KVTWIN_SCENARIOS_APP_COMPOSE_RETRIEVING_H_
#define KVTWIN_SCENARIOS_APP_COMPOSE_RETRIEVING_H_

#include <memory>
#include <optional>
#include <vector>

#include "models/cost/retrieval_cost.h"
#include "scenarios/app/compose.h"
#include "sim/clock/graph_pricer.h"

namespace kvtwin {

struct RetrievalSetup {
  std::optional<RetrievalCost> prices;
  std::vector<std::unique_ptr<sim::GraphPricer>> pricers;  // by engine
};

RetrievalSetup make_retrieving(const Scenario& scenario, const Composed& composed);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_APP_COMPOSE_RETRIEVING_H_
