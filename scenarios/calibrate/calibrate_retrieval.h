// How retrieval behaves on a model's own queries: what FreeKV's correction and every method's recalls follow
// from (docs/design/methods/freekv.md#step, #timelines), measured on dense decodes of a trace's outputs.

#ifndef KVTWIN_SCENARIOS_CALIBRATE_CALIBRATE_RETRIEVAL_H_
#define KVTWIN_SCENARIOS_CALIBRATE_CALIBRATE_RETRIEVAL_H_

#include <string>

#include "models/profiles/recall_profile.h"
#include "scenarios/calibrate/calibrate_model.h"

namespace kvtwin {

struct RetrievalRequest {
  uint32_t steps = 64;  // of each output
};

// Options are the scenario's retrieval's: pages, budget, summaries, scores. In each step every KV head
// chooses pages with its own query; a page counts as missing if the step before did not choose it. Steps that
// choose everything are left out. Errors: retrieval "all", or one that chooses no pages; no context is long
// enough.
Result<RecallProfile> calibrate_retrieval(const Scenario& scenario, const RetrievalRequest& request,
                                          CalibrationModel* model);

// By layer: similarity, corrections at some taus, misses.
std::string recall_table(const RecallProfile& profile);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_CALIBRATE_CALIBRATE_RETRIEVAL_H_
