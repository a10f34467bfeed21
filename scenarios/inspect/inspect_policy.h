// Measures the quality of a scorer's choice against two references: the choice of the response's own queries
// (docs/design/methods/judge-q.md#hit-rate), and attention over the whole context.

#ifndef KVTWIN_SCENARIOS_INSPECT_INSPECT_POLICY_H_
#define KVTWIN_SCENARIOS_INSPECT_INSPECT_POLICY_H_

#include <string>
#include <vector>

#include "scenarios/calibrate/calibrate_model.h"
#include "scenarios/output/summary.h"

namespace kvtwin {

struct InspectRequest {
  std::vector<std::string> scorers;  // "oracle" is Judge Q with the response as probe tokens
  std::vector<uint32_t> budgets;     // KV entries per head, sinks and window included
  uint32_t sinks = 0, window = 0;    // retained by every scorer and the reference
  uint32_t response_tokens = 64;     // first tokens of each output
  uint32_t error_tokens = 8;         // number of these, evenly spread, whose outputs are compared
};

// One scorer with one budget in one layer. Contexts that fit the budget are left out.
struct InspectLayer {
  double hit_rate = 0;  // mean over heads and contexts of |retained and critical| / |critical|
  double error = 0;     // sqrt(sum |o - o'|^2 / sum |o|^2) over query tokens, heads and contexts
};
struct InspectRow {
  std::string scorer;
  uint32_t budget = 0;
  uint32_t contexts = 0;
  double hit_rate = 0;
  double hit_margin = 0;  // half of the 95 % interval of hit_rate: normal, over contexts
  // The hit rate of random KV entries in addition to sinks and window; budget / tokens if there are neither.
  double floor = 0;
  double error = 0;  // over all layers
  std::vector<InspectLayer> layers;

  double lift() const { return floor > 0 ? hit_rate / floor : 0; }
};

// Scorers have their published options, the scenario's own scorer has the scenario's. Critical KV entries are
// those that the scores of the response's tokens retain with the same budget, per layer and head. Errors: an
// unknown scorer, or one that cannot score a captured context; a budget that holds every context.
Result<std::vector<InspectRow>> inspect_policy(const Scenario& scenario, const InspectRequest& request,
                                               CalibrationModel* model);

// table: a row per scorer and budget. json, jsonl and csv: a record per scorer, budget and layer.
std::string inspect_text(const std::vector<InspectRow>& rows, OutputFormat format);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_INSPECT_INSPECT_POLICY_H_
