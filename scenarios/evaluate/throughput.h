// What a policy set makes of a large model's throughput, beside what it makes of a small one's answers.
//
// A load is a scenario: a model, hardware, limits, a trace. It is simulated with the policies of the set that
// was asked; a budget is the same fraction of the load's mean prompt as it was of the session (64 cells of
// 384 tokens: a sixth). Of the load are pages, prices, and what counts tokens of a context that is 20 times
// as long: sinks and window of retrieval, shares of reserved budgets (they are of a model's own heads). Sets
// that differ in nothing that takes time are simulated once.

#ifndef KVTWIN_SCENARIOS_EVALUATE_THROUGHPUT_H_
#define KVTWIN_SCENARIOS_EVALUATE_THROUGHPUT_H_

#include <functional>
#include <string>
#include <vector>

#include "scenarios/evaluate/evaluate.h"

namespace kvtwin {

// Simulates what rows stand for, `processes` at once, in request.out/throughput: a folder per simulation,
// named by its inputs; those that are there are not run again. Fills simulated_* of the rows. A row whose
// file is neither among the request's nor in its folder `sets_in` keeps what it has; `report` hears of the
// others that have none.
Result<void> add_throughput(const EvaluateRequest& request, const std::string& program, uint32_t processes,
                            std::vector<QualityRow>* rows,
                            const std::function<void(const std::string&)>& report);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_EVALUATE_THROUGHPUT_H_
