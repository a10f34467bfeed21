// An evaluation in several processes of this machine.

#ifndef KVTWIN_SCENARIOS_EVALUATE_PROCESSES_H_
#define KVTWIN_SCENARIOS_EVALUATE_PROCESSES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "scenarios/evaluate/evaluate.h"

namespace kvtwin {

// Leaves the files of all cells in request.out, computed by processes of `program` in shards: a
// crash costs its shard, and evaluate() finds what is missing. `processes`: how many at once; one number, or
// one for each of the request's backends, beside one another: policy sets that the first backend computes are
// the first's, and so on. `report` gets what a process wrote on stderr. Errors: as evaluate(); no process can
// be started.
Result<void> evaluate_in_processes(const EvaluateRequest& request, const std::string& program,
                                   const std::vector<uint32_t>& processes,
                                   const std::function<void(const std::string&)>& report);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_EVALUATE_PROCESSES_H_
