// Measures retrieval on a model's own queries, from dense decodes of a trace's outputs: the rates of FreeKV's
// corrections and of every method's recalls (docs/design/methods/freekv.md#step, #timelines).

#ifndef KVTWIN_SCENARIOS_CALIBRATE_CALIBRATE_RETRIEVAL_H_
#define KVTWIN_SCENARIOS_CALIBRATE_CALIBRATE_RETRIEVAL_H_

#include <string>

#include "models/profiles/recall_profile.h"
#include "scenarios/calibrate/calibrate_model.h"

namespace kvtwin {

struct RetrievalRequest {
  uint32_t steps = 64;  // of each output
};

// Uses the scenario's retrieval options: pages, budget, summaries, scores. In each step every KV head chooses
// pages with its own query; a page counts as missing if the previous step did not choose it. Steps that
// choose all pages are left out. Errors: retrieval "all", or one that chooses no pages; no context is long
// enough.
Result<RecallProfile> calibrate_retrieval(const Scenario& scenario, const RetrievalRequest& request,
                                          CalibrationModel* model);

// A table by layer: query similarity, corrections at some values of tau, misses.
std::string recall_table(const RecallProfile& profile);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_CALIBRATE_CALIBRATE_RETRIEVAL_H_
