// Prices of a plan's candidates: those of the catalog, or the user's.

#ifndef KVTWIN_SCENARIOS_PLAN_PLAN_PRICE_H_
#define KVTWIN_SCENARIOS_PLAN_PLAN_PRICE_H_

#include <string_view>
#include <vector>

#include "scenarios/app/compose.h"
#include "scenarios/plan/plan.h"

namespace kvtwin {

// Parses NODE=USD_PER_GPU_HOUR.
Result<GivenPrice> parse_price(std::string_view text);

// Fills the candidate's GPUs, nodes and price. The price counts GPUs in use; nodes may have more.
void price(const Composed& composed, const std::vector<GivenPrice>& given, Candidate* candidate);

// Prices a run of the candidate by the candidate's price, which may differ from the catalog's.
void take_price(const Candidate& candidate, std::map<std::string, double>* figures);

// Fails for a given price whose node no candidate has.
Result<void> check_prices(const std::vector<GivenPrice>& given, const std::vector<Candidate>& candidates);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_PLAN_PLAN_PRICE_H_
