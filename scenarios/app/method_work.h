// What a policy adds to steps of the CUDA engine, in the numbers that OperationCost counts with
// (models/cost_tables/operation_cost.h). It follows from traits, never from names.

#ifndef KVTWIN_SCENARIOS_APP_METHOD_WORK_H_
#define KVTWIN_SCENARIOS_APP_METHOD_WORK_H_

#include "engine/methods/config.h"
#include "models/catalog/llm.h"
#include "models/cost_tables/operation_cost.h"

namespace kvtwin {

MethodWork method_work(const CoreConfig& config, const LlmSpec& llm);
// Whether steps have operations that only `work` has.
bool adds_operations(const CoreConfig& config);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_APP_METHOD_WORK_H_
