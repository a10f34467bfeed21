// Rows of several evaluations as one: parts that were computed on different machines, or at different times.

#ifndef KVTWIN_SCENARIOS_EVALUATE_COLLECT_H_
#define KVTWIN_SCENARIOS_EVALUATE_COLLECT_H_

#include <string>
#include <vector>

#include "scenarios/evaluate/evaluate.h"

namespace kvtwin {

// Adds the cells of each folder (its cells/*.json, or a quality.csv) behind `rows`, all in order of policy
// set, budget and task. Where a cell is there already, the one with more questions stays, a refusal gives
// way, and of equals the first does. Errors: a folder without cells, a file that is none, another model, or
// the same task asked by sessions of another kind (tokens, questions, seed): their numbers do not belong into
// one table.
Result<void> collect(const std::vector<std::string>& folders, std::vector<QualityRow>* rows);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_EVALUATE_COLLECT_H_
