// What a scenario says of formats and partition, as the policy, the memory model and the cost models take it.

#ifndef KVTWIN_SCENARIOS_FORMATS_H_
#define KVTWIN_SCENARIOS_FORMATS_H_

#include <optional>
#include <string>

#include "engine/policy/config.h"
#include "engine/policy/dual_pool.h"
#include "models/llm.h"
#include "models/plan_price.h"
#include "models/recall_profile.h"
#include "models/retention_profile.h"
#include "scenarios/scenario.h"

namespace kvtwin {

// Fills the specs of `set`, whose names are set; reads the files that the options name. `llm`: of the
// scenario, to check a profile's size against.
void load_format_specs(const Scenario& scenario, const LlmSpec& llm, PolicySet* set, Mistakes* mistakes);

// The retention profile that option `field` names as `written`; nothing, and a mistake at the option, if it
// is none.
std::optional<RetentionProfile> load_retention(const Scenario& scenario, const char* field,
                                               const std::string& written, Mistakes* mistakes);

// The recall profile that simulation.retrieval.profile names; nothing if it names none. Mistakes: it is none,
// or of another model.
Result<std::optional<RecallProfile>> load_recall_profile(const Scenario& scenario, const LlmSpec& llm);

// Makes llm->kv what the precision policy stores. Does nothing for bf16: the model's own format stays.
// REQUIRES: the policy's name is known.
void apply_precision(const Scenario& scenario, LlmSpec* llm);
// Cells that a call keeps exact beside its pages (KIVI), as staging of all calls on one GPU.
uint64_t exact_cells_bytes(const Scenario& scenario, const LlmSpec& llm, uint32_t tp);

// triaxial: pages of both formats that `kv_bytes` of one GPU hold, cut by the bits that were planned.
DualPoolSize dual_pool_pages(const LlmSpec& llm, uint32_t tp, uint32_t page_tokens, uint64_t kv_bytes,
                             const PrecisionSpec& spec);

// What the partition policy plans on the host, per step. Every call has one length in all heads and layers;
// a layout with head groups plans per layer instead.
PlanPrice plan_price(const Scenario& scenario);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_FORMATS_H_
