// Merges rows of several evaluations, for example of parts computed on different machines.

#ifndef KVTWIN_SCENARIOS_EVALUATE_COLLECT_H_
#define KVTWIN_SCENARIOS_EVALUATE_COLLECT_H_

#include <string>
#include <vector>

#include "scenarios/evaluate/evaluate.h"

namespace kvtwin {

// Appends the cells of each folder (its cells/*.json, or a quality.csv) to `rows` and sorts all by policy
// set, budget and task. Of two equal cells, a refused one is replaced, then the one with more questions
// stays, then the first. Errors: a folder without cells; an invalid file; another model; or the same task
// with other sessions (tokens, questions, seed), because such numbers do not belong into one table.
Result<void> collect(const std::vector<std::string>& folders, std::vector<QualityRow>* rows);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_EVALUATE_COLLECT_H_
