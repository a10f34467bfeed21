// The head groups of a policy set. The policy and all backends use these functions, so they agree.

#ifndef KVTWIN_ENGINE_METHODS_BUDGET_GROUPS_H_
#define KVTWIN_ENGINE_METHODS_BUDGET_GROUPS_H_

#include <vector>

#include "engine/kv/head_groups.h"
#include "engine/methods/config.h"

namespace kvtwin {

// The budget of each head, by layer * kv_heads + head, in the unit of the set's budget; heads are sorted by
// it. Empty if the budget does not distinguish heads.
// REQUIRES: validate_budget_spec() and validate_layout_spec() return nullopt.
std::vector<Fraction> clustering_budgets(const PolicySet& set);

// One group of all heads unless the layout has groups.
GroupMap make_groups(const PolicySet& set);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_BUDGET_GROUPS_H_
