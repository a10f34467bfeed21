// kvtwin.evaluate: shipped and own policy sets, and scorers of this process, on tasks with known answers.

#ifndef KVTWIN_SCENARIOS_PYTHON_EVALUATION_H_
#define KVTWIN_SCENARIOS_PYTHON_EVALUATION_H_

#include <memory>
#include <string>
#include <vector>

#include "kernels/scoring/score_external.h"
#include "scenarios/evaluate/evaluate.h"

namespace kvtwin {

struct NamedScorer {
  std::string name;
  std::shared_ptr<kernels::ExternalScorer> scorer;
};

struct EvaluationRequest {
  EvaluateRequest policies;
  std::vector<NamedScorer> scorers;
  std::string base;       // the scenario in which the scorers take the place of its own
  std::string temporary;  // folder for their cells, which are not found again: functions have no fingerprint
  std::string paired;     // a policy's name, or ""
};

struct EvaluationText {
  std::string csv, table;
};

// Writes quality.csv and quality.json into policies.out. Throws what a scorer throws.
Result<EvaluationText> evaluate_in_process(const EvaluationRequest& request);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_PYTHON_EVALUATION_H_
