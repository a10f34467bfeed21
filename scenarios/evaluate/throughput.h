// Simulates the throughput of a large model with a policy set, to set it against the quality of a small
// model's answers with the same set.
//
// A load is a scenario: a model, hardware, limits, a trace. It is simulated with the row's policies. The
// budget is the same fraction of the load's mean prompt as of the evaluation's session (64 of 384 tokens: a
// sixth). The load supplies pages, prices, and what counts tokens of a context that is 20 times as long:
// sinks and window of retrieval, fractions of reserved budgets (which belong to a model's own heads). Sets
// that do not differ in timing are simulated once.

#ifndef KVTWIN_SCENARIOS_EVALUATE_THROUGHPUT_H_
#define KVTWIN_SCENARIOS_EVALUATE_THROUGHPUT_H_

#include <functional>
#include <string>
#include <vector>

#include "scenarios/evaluate/evaluate.h"

namespace kvtwin {

// Simulates the policy sets of `rows`, `processes` concurrently, in request.out/throughput: one folder per
// simulation, named by its inputs; existing ones are not run again. Sets simulated_* of the rows. A row whose
// scenario file is neither among the request's nor in folder `sets_in` stays unchanged; `report` receives a
// message for each of the others that gets no figure.
Result<void> add_throughput(const EvaluateRequest& request, const std::string& program, uint32_t processes,
                            std::vector<QualityRow>* rows,
                            const std::function<void(const std::string&)>& report);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_EVALUATE_THROUGHPUT_H_
