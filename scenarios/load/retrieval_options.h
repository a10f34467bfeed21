// In-step retrieval in a scenario: defaults and checks of its options, and their translation for the policy
// and for the simulated backend's prices and behaviour.

#ifndef KVTWIN_SCENARIOS_LOAD_RETRIEVAL_OPTIONS_H_
#define KVTWIN_SCENARIOS_LOAD_RETRIEVAL_OPTIONS_H_

#include <functional>
#include <string>

#include "engine/base/recall_copies.h"
#include "engine/methods/retrieval_spec.h"
#include "models/catalog/llm.h"
#include "models/cost/retrieval_cost.h"
#include "traces/proto/scenario.pb.h"

namespace kvtwin {

// Gives every absent option its method's default; does nothing where nothing is retrieved.
void resolve_retrieval(v1::Scenario* scenario);

// Calls `problem(field, what, hint)` for each error. REQUIRES: resolve_retrieval() was called.
using InvalidField = std::function<void(const std::string& field, std::string what, std::string hint)>;
void check_retrieval(const v1::Scenario& scenario, const InvalidField& problem);

// REQUIRES: check_retrieval() found no error. The fraction that stays on the GPU follows from the model's
// shape.
RetrievalSpec retrieval_spec(const v1::Scenario& scenario, const LlmSpec& llm);
RecallCopies recall_copies(const v1::Scenario& scenario);
RetrievalGeometry retrieval_geometry(const RetrievalSpec& spec, const RecallCopies& copies,
                                     RetrievalKind kind, const LlmSpec& llm, uint32_t page_tokens);

// A ratio of a scenario as Q0.32. It is rounded here only.
uint64_t ratio_q32(double value);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_LOAD_RETRIEVAL_OPTIONS_H_
