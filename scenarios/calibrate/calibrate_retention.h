// How much of each context every KV head keeps when a scorer's best KV entries are kept over a layer, or over
// all of them: the calibration of budgets (docs/design/methods/tangram.md#calibration), and the behaviour
// model's table of what is kept.

#ifndef KVTWIN_SCENARIOS_CALIBRATE_CALIBRATE_RETENTION_H_
#define KVTWIN_SCENARIOS_CALIBRATE_CALIBRATE_RETENTION_H_

#include "models/profiles/retention_profile.h"
#include "scenarios/calibrate/calibrate_model.h"

namespace kvtwin {

struct RetentionRequest {
  double ratio = 0.3;  // of all tokens but the sinks, window included
  uint32_t sinks = 4, window = 32;
  bool all_layers = false;  // one threshold for all layers; else one for each
};

// The scorer is the scenario's. Of a context with n tokens behind its sinks, r_adj n_e heads KV entries are
// kept besides the window (docs/design/methods/tangram.md#released-chunks; rounded up), n_e being n without
// the window. Scorers that share no score between heads are what this is for: those that give all heads the
// same keep the same everywhere. Errors: the scorer cannot be scored from a captured context.
Result<RetentionProfile> calibrate_retention(const Scenario& scenario, const RetentionRequest& request,
                                             CalibrationModel* model);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_CALIBRATE_CALIBRATE_RETENTION_H_
