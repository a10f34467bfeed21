// Fits the prices of MethodTerms (models/cost_tables/method_cost.h) to the steps of real runs.
//
// The fit minimises absolute relative errors, by reweighted least squares. No price is negative, because no
// operation takes negative time. Pages that are recalled after attention overlap with the step, so a sum does
// not describe them: they are copied concurrently with the work between attention and the next layer's
// recall, and the step waits for the remainder.

#ifndef KVTWIN_SCENARIOS_VALIDATE_METHOD_FIT_H_
#define KVTWIN_SCENARIOS_VALIDATE_METHOD_FIT_H_

#include <vector>

#include "models/cost_tables/method_cost.h"

namespace kvtwin {

struct MethodSample {
  MethodCounts counts{};
  double measured = 0, dense = 0;  // us: the step; the dense engine's step of the same shape
  double attention = 0;            // part of `dense`, where steps recall pages
};

// Samples 0, kHeldOut, 2 * kHeldOut ... are not fitted: they measure the error of the prices.
constexpr size_t kHeldOut = 5;

// Known prices by term; a negative price, as in all terms of this value, is to be fitted.
MethodCounts learn_all();
// REQUIRES: samples are steps in order, measured > 0. `name`, `model`: see MeasuredMethod.
MeasuredMethod fit_method(const std::string& name, const std::string& model,
                          const std::vector<MethodSample>& samples, const MethodCounts& known = learn_all());
// Mean absolute error over the steps that choose pages, held-out ones excluded.
double choosing_error(const std::vector<MethodSample>& samples, const MeasuredMethod& method);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_VALIDATE_METHOD_FIT_H_
