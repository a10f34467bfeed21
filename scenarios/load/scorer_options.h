// A scenario's scorer options, translated for both users: integers for the policy, values for the kernels.

#ifndef KVTWIN_SCENARIOS_LOAD_SCORER_OPTIONS_H_
#define KVTWIN_SCENARIOS_LOAD_SCORER_OPTIONS_H_

#include "engine/methods/scorer_spec.h"
#include "kernels/scoring/score.h"
#include "scenarios/load/scenario.h"

namespace kvtwin {

// Every option that the scorer reads, with its published value; `code_base` selects SnapKV's variant. Empty
// for a scorer without options and for an unknown name.
v1::ScorerOptions default_scorer_options(const std::string& scorer, const std::string& code_base);

// Completes policies.scorer_options from the defaults. Invalid options stay for check_scorer_options() to
// report.
void complete_scorer_options(v1::Policies* policies);
// Reports options that the scorer does not read, unknown names and numbers out of range.
void check_scorer_options(const Scenario& scenario, Errors* errors);

// Both: REQUIRES: check_scorer_options() found no error.
ScorerSpec scorer_spec(const v1::Policies& policies);
kernels::ScoreSpec score_spec(const v1::Scenario& values);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_LOAD_SCORER_OPTIONS_H_
