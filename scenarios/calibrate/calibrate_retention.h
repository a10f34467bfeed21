// Measures the fraction of each context that every KV head retains when a scorer's best KV entries are
// retained per layer, or over all layers: the calibration of budgets
// (docs/design/methods/tangram.md#calibration), and the behaviour model's table of retained fractions.

#ifndef KVTWIN_SCENARIOS_CALIBRATE_CALIBRATE_RETENTION_H_
#define KVTWIN_SCENARIOS_CALIBRATE_CALIBRATE_RETENTION_H_

#include "models/profiles/retention_profile.h"
#include "scenarios/calibrate/calibrate_model.h"

namespace kvtwin {

struct RetentionRequest {
  double ratio = 0.3;  // of all tokens except sinks, window included
  uint32_t sinks = 4, window = 32;
  bool all_layers = false;  // one threshold for all layers; else one per layer
};

// Uses the scenario's scorer. Of a context with n tokens after its sinks, r_adj n_e heads KV entries are
// retained besides the window (docs/design/methods/tangram.md#released-chunks; rounded up), where n_e is n
// without the window. The result is informative for scorers whose scores differ between heads; with equal
// scores all heads retain the same. Errors: the scorer cannot score a captured context.
Result<RetentionProfile> calibrate_retention(const Scenario& scenario, const RetentionRequest& request,
                                             CalibrationModel* model);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_CALIBRATE_CALIBRATE_RETENTION_H_
