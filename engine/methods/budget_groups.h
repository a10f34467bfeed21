// Which head groups a policy set has: the same answer for the policy and for every world.

#ifndef KVTWIN_ENGINE_METHODS_BUDGET_GROUPS_H_
#define KVTWIN_ENGINE_METHODS_BUDGET_GROUPS_H_

#include <vector>

#include "engine/kv/head_groups.h"
#include "engine/methods/config.h"

namespace kvtwin {

// What each head may keep, by layer * kv_heads + head, in whatever unit the set's budget counts: what
// heads are sorted by. Empty where the budget does not tell heads apart.
// REQUIRES: validate_budget_spec() and validate_layout_spec() found nothing.
std::vector<Fraction> clustering_budgets(const PolicySet& set);

// One group of all heads unless the layout has groups.
GroupMap make_groups(const PolicySet& set);

// Whether a layout of this name has a page table per head group.
bool layout_has_groups(const std::string& layout);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_BUDGET_GROUPS_H_
