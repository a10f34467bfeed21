// Runs an evaluation in several processes of this machine.

#ifndef KVTWIN_SCENARIOS_EVALUATE_PROCESSES_H_
#define KVTWIN_SCENARIOS_EVALUATE_PROCESSES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "scenarios/evaluate/evaluate.h"

namespace kvtwin {

// Writes the files of all cells to request.out, computed by processes of `program` in shards. A crash loses
// its shard only; evaluate() computes what is missing. `processes` is the number of concurrent processes: one
// number, or one for each of the request's backends, which then run concurrently, each on the policy sets
// that it is the first to compute. `report` receives what a process wrote to stderr. Errors: as evaluate();
// no process can be started.
Result<void> evaluate_in_processes(const EvaluateRequest& request, const std::string& program,
                                   const std::vector<uint32_t>& processes,
                                   const std::function<void(const std::string&)>& report);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_EVALUATE_PROCESSES_H_
