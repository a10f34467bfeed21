// What a scenario says about its scorer, for both halves: integers for the policy, values for the kernels.

#ifndef KVTWIN_SCENARIOS_LOAD_SCORER_OPTIONS_H_
#define KVTWIN_SCENARIOS_LOAD_SCORER_OPTIONS_H_

#include "engine/methods/scorer_spec.h"
#include "kernels/scoring/score.h"
#include "scenarios/load/scenario.h"

namespace kvtwin {

// Every option that the scorer reads, with its published value; `code_base` picks SnapKV's variant. Empty for
// a scorer that has none, or a name that is not known.
v1::ScorerOptions default_scorer_options(const std::string& scorer, const std::string& code_base);

// Completes policies.scorer_options from the defaults. What is wrong stays, for check_scorer_options().
void complete_scorer_options(v1::Policies* policies);
// Options that the scorer does not read, names that do not exist, numbers out of range.
void check_scorer_options(const Scenario& scenario, Errors* errors);

// REQUIRES, both: check_scorer_options() found nothing wrong.
ScorerSpec scorer_spec(const v1::Policies& policies);
kernels::ScoreSpec score_spec(const v1::Scenario& values);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_LOAD_SCORER_OPTIONS_H_
