// Computes the prices of families of operations (models/cost_tables/operation_cost.h) from steps of the
// engine, of several methods together: a family has one price for all of them.

#ifndef KVTWIN_SCENARIOS_VALIDATE_OPERATION_FIT_H_
#define KVTWIN_SCENARIOS_VALIDATE_OPERATION_FIT_H_

#include <cstdint>
#include <vector>

#include "models/cost_tables/measured_device.h"
#include "models/cost_tables/operation_cost.h"

namespace kvtwin {

// A step, in us.
struct OperationSample {
  FamilyCounts counts{};
  double measured = 0;
  double dense = 0;      // the dense engine's step of the same shape
  double attention = 0;  // part of `dense`, where steps recall pages
  // The host makes the step's graph meanwhile, so that the step may wait for the host.
  bool makes_graph = false;
};

// Every so many samples, one is held out: the errors in the result are of these.
constexpr size_t kHeldOut = 5;

// REQUIRES: measured > 0. Families that no sample counts get no price.
MeasuredOperations fit_operations(const std::vector<OperationSample>& samples);
// The time of a step by these prices, in us, with the wait for pages that the next step reads.
double predicted_us(const OperationSample& sample, const FamilyCounts& ns);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_VALIDATE_OPERATION_FIT_H_
