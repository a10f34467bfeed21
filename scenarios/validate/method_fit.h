// What a method adds to steps, from steps of real runs: prices of MethodTerms
// (models/cost_tables/method_cost.h).
//
// Least absolute relative errors, by reweighted least squares; no price is below zero, because no operation
// takes less than no time. Pages that are recalled behind attention overlap with steps, so no sum holds:
// they run beside what lies between attention and the next layer's recall, and what is left is waited for.

#ifndef KVTWIN_SCENARIOS_VALIDATE_METHOD_FIT_H_
#define KVTWIN_SCENARIOS_VALIDATE_METHOD_FIT_H_

#include <vector>

#include "models/cost_tables/method_cost.h"

namespace kvtwin {

struct MethodSample {
  MethodCounts counts{};
  double measured = 0, dense = 0;  // us: the step; the dense engine's step of the same shape
  double attention = 0;            // of the latter, where steps recall pages
};

// Of samples that are numbered 0, kHeldOut, 2 * kHeldOut ... nothing is learnt: they say how good the prices
// are.
constexpr size_t kHeldOut = 5;

// Prices that are taken as given, by term; below zero, as here: to be learnt.
MethodCounts learn_all();
// REQUIRES: samples are steps in order, measured > 0. `name`, `model`: as in MeasuredMethod.
MeasuredMethod fit_method(const std::string& name, const std::string& model,
                          const std::vector<MethodSample>& samples, const MethodCounts& known = learn_all());
// Mean size of the error of steps that choose pages, but for those that are held out.
double choosing_error(const std::vector<MethodSample>& samples, const MeasuredMethod& method);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_VALIDATE_METHOD_FIT_H_
