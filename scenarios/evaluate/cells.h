// The cells of an evaluation: which there are, the sessions they ask, and what one gives.

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
  bool temporary = false;  // removed with this
  TaskKey key;
};

// Traces by task, each written when it is first asked for. `request` must outlive it.
class TaskTraces {
 public:
  explicit TaskTraces(const EvaluateRequest* request) : request_(*request) {}
  // With as many sessions as the questions need. Mistakes: make_task's; a file that cannot be written.
  Result<const TaskTrace*> of(const std::string& task);

 private:
  const EvaluateRequest& request_;
  std::map<std::string, std::unique_ptr<TaskTrace>> made_;
};

struct Cell {
  QualityRow row;  // policy, budget, task
  std::string scenario, file;
};

// All cells, in order: by scenario, budget, task. `traces` is the request's.
Result<std::vector<Cell>> plan_cells(const EvaluateRequest& request, TaskTraces* traces);

// The scenario of a cell in `world`. Mistakes: the budget does not fit the policy set.
tl::expected<Scenario, Mistakes> cell_scenario(const EvaluateRequest& request, const Cell& cell,
                                               const TaskTrace& trace, const std::string& world);

// Computes a cell: everything of `row` but its name and inputs. Mistakes: the policy set is refused.
Result<void> run_cell(const Scenario& scenario, const TaskTrace& trace, QualityRow* row);

// The first of the request's worlds that computes its first policy set, so far as can be said without running
// it; the last if none does. Mistakes: as plan_cells.
Result<size_t> first_world(const EvaluateRequest& request);

// One mistake for all of them.
Mistake joined(const Mistakes& mistakes);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_EVALUATE_CELLS_H_
