// What registry.cc joins: the rows and the factory of each axis.

#ifndef KVTWIN_ENGINE_METHODS_AXIS_FACTORIES_H_
#define KVTWIN_ENGINE_METHODS_AXIS_FACTORIES_H_

#include <memory>
#include <string_view>
#include <vector>

#include "engine/kv/store/prefix_eviction.h"
#include "engine/methods/axes.h"
#include "engine/methods/scorer_spec.h"

namespace kvtwin {

// REQUIRES, here and below: the name is known, and validate_scorer() returns nullopt.
std::unique_ptr<Scorer> make_scorer(std::string_view name, const ScorerSpec& spec);
std::unique_ptr<Budget> make_budget(const PolicySet& set);
std::unique_ptr<Identity> make_identity(std::string_view name);

// Append the rows of an axis, the identity first.
void append_scorers(std::vector<PolicyInfo>* out);
void append_budgets(std::vector<PolicyInfo>* out);
void append_layouts(std::vector<PolicyInfo>* out);
void append_precisions(std::vector<PolicyInfo>* out);
void append_placements(std::vector<PolicyInfo>* out);
void append_retrievals(std::vector<PolicyInfo>* out);
void append_partitions(std::vector<PolicyInfo>* out);
void append_identities(std::vector<PolicyInfo>* out);
void append_evictions(std::vector<PolicyInfo>* out);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_AXIS_FACTORIES_H_
