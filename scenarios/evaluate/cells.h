// The cells of an evaluation (policy set x budget x task): their list, their traces, and their computation.

#ifndef KVTWIN_SCENARIOS_EVALUATE_CELLS_H_
#define KVTWIN_SCENARIOS_EVALUATE_CELLS_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "scenarios/evaluate/evaluate.h"

namespace kvtwin {

struct TaskTrace {
  ~TaskTrace();
  std::string path;
  bool temporary = false;  // removed on destruction
  TaskKey key;
};

// Traces by task, each written on first use. `request` must outlive this object.
class TaskTraces {
 public:
  explicit TaskTraces(const EvaluateRequest* request) : request_(*request) {}
  // The trace has as many sessions as the questions need. Errors: make_task's; a file that cannot be written.
  Result<const TaskTrace*> of(const std::string& task);

 private:
  const EvaluateRequest& request_;
  std::map<std::string, std::unique_ptr<TaskTrace>> made_;
};

struct Cell {
  QualityRow row;  // policy, budget, task
  std::string scenario, file;
};

// All cells, ordered by scenario, budget and task. `traces` must be the request's.
Result<std::vector<Cell>> plan_entries(const EvaluateRequest& request, TaskTraces* traces);

// The scenario of a cell for `backend`. Errors: the budget does not fit the policy set.
tl::expected<Scenario, Errors> cell_scenario(const EvaluateRequest& request, const Cell& cell,
                                             const TaskTrace& trace, const std::string& backend);

// Computes a cell: all fields of `row` but its name and inputs. Errors: the policy set is refused.
Result<void> run_cell(const Scenario& scenario, const TaskTrace& trace, QualityRow* row);

// The first of the request's backends that computes its first policy set, as far as this can be known without
// running it; the last backend if none does. Errors: as plan_entries().
Result<size_t> first_backend(const EvaluateRequest& request);

// Joins several errors into one.
Error joined(const Errors& errors);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_EVALUATE_CELLS_H_
