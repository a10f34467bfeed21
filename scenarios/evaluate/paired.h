// Paired comparison of two policy sets that answered the same questions (McNemar 1947, exact): only questions
// that one of them answers and the other does not count, so it decides where two intervals overlap.

#ifndef KVTWIN_SCENARIOS_EVALUATE_PAIRED_H_
#define KVTWIN_SCENARIOS_EVALUATE_PAIRED_H_

#include <cstdint>
#include <string>
#include <vector>

#include "scenarios/evaluate/evaluate.h"

namespace kvtwin {

struct Paired {
  uint64_t gained = 0;  // questions that the base does not answer
  uint64_t lost = 0;    // questions that only the base answers
  // Probability of a difference at least as large if both policy sets were equally good: two-sided, 0 to 1.
  double p = 1;
};
// `base` and `other`: AnswerTotals::marks. REQUIRES: equal lengths.
Paired paired(const std::string& base, const std::string& other);

// A line for each row that has the same questions as a row of policy set `base`: of the same task, model and
// sessions, and of the same budget if the base has one. Errors: no row is of `base`, or its answers by
// question are not known.
Result<std::string> paired_table(const std::vector<QualityRow>& rows, const std::string& base);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_EVALUATE_PAIRED_H_
