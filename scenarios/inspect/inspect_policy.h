// How good is what a scorer keeps? Beside the response's own queries, which choose knowing what is to come
// (docs/design/methods/judge-q.md#hit-rate), and beside attention over everything.

#ifndef KVTWIN_SCENARIOS_INSPECT_INSPECT_POLICY_H_
#define KVTWIN_SCENARIOS_INSPECT_INSPECT_POLICY_H_

#include <string>
#include <vector>

#include "scenarios/calibrate/calibrate_model.h"
#include "scenarios/output/summary.h"

namespace kvtwin {

struct InspectRequest {
  std::vector<std::string> scorers;  // "oracle" is Judge Q asked with the response itself
  std::vector<uint32_t> budgets;     // KV entries of one head, sinks and window included
  uint32_t sinks = 0, window = 0;    // kept whatever their score, by every scorer and the reference
  uint32_t response_tokens = 64;     // first tokens of each output
  uint32_t error_tokens = 8;         // of them, evenly spread: those whose outputs are compared
};

// One scorer with one budget, of one layer. Contexts that the budget holds whole are left out.
struct InspectLayer {
  double hit_rate = 0;  // mean over heads and contexts of |kept and critical| / |critical|
  double error = 0;     // sqrt(sum |o - o'|^2 / sum |o|^2) over the rows, heads and contexts
};
struct InspectRow {
  std::string scorer;
  uint32_t budget = 0;
  uint32_t contexts = 0;
  double hit_rate = 0;
  double floor =
      0;  // what random KV entries beside sinks and window get; budget / tokens if there are neither
  double error = 0;  // over all layers
  std::vector<InspectLayer> layers;

  double lift() const { return floor > 0 ? hit_rate / floor : 0; }
};

// Each scorer has its published options, the scenario's own scorer the scenario's. Critical KV entries: what
// the scores of the response's rows keep under the same budget, per layer and head. Errors: a scorer that is
// none or that a captured context cannot tell, a budget that holds every context.
Result<std::vector<InspectRow>> inspect_policy(const Scenario& scenario, const InspectRequest& request,
                                               CalibrationModel* model);

// table: a row per scorer and budget. json, jsonl and csv: a record per scorer, budget and layer.
std::string inspect_text(const std::vector<InspectRow>& rows, OutputFormat format);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_INSPECT_INSPECT_POLICY_H_
