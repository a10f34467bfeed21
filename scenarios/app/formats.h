// What a scenario says of formats and partition, as the policy, the memory model and the cost models take it.

#ifndef KVTWIN_SCENARIOS_APP_FORMATS_H_
#define KVTWIN_SCENARIOS_APP_FORMATS_H_

#include <optional>
#include <string>

#include "engine/kv/mixed_precision_pool.h"
#include "engine/methods/config.h"
#include "models/catalog/llm.h"
#include "models/cost/plan_price.h"
#include "models/profiles/recall_profile.h"
#include "models/profiles/retention_profile.h"
#include "scenarios/load/scenario.h"

namespace kvtwin {

// Fills the specs of `set`, whose names are set; reads the files that the options name. `llm`: of the
// scenario, to check a profile's size against.
void load_format_specs(const Scenario& scenario, const LlmSpec& llm, PolicySet* set, Errors* errors);

// The retention profile that option `field` names as `written`; nothing, and an error at the option, if it
// is none.
std::optional<RetentionProfile> load_retention(const Scenario& scenario, const char* field,
                                               const std::string& written, Errors* errors);

// The recall profile that simulation.retrieval.profile names; nothing if it names none. Errors: it is none,
// or of another model.
Result<std::optional<RecallProfile>> load_recall_profile(const Scenario& scenario, const LlmSpec& llm);

// Makes llm->kv what the precision policy stores. Does nothing for bf16: the model's own format stays.
// REQUIRES: the policy's name is known.
void apply_precision(const Scenario& scenario, LlmSpec* llm);
// KV entries that a request keeps exact beside its pages (KIVI), as staging of all requests on one GPU.
uint64_t exact_entries_bytes(const Scenario& scenario, const LlmSpec& llm, uint32_t tp);

// triaxial: pages of both formats that `kv_bytes` of one GPU hold, cut by the bits that were planned.
MixedPrecisionPoolSize mixed_precision_pool_pages(const LlmSpec& llm, uint32_t tp, uint32_t page_tokens,
                                                  uint64_t kv_bytes, const PrecisionSpec& spec);

// triaxial: how many of `pages` are int2, for KV entries n2 : n4 as planned.
uint32_t pages_int2(uint32_t pages, const PrecisionSpec& spec);

// What the partition policy plans on the host, per step: one plan, where every request has one length in all
// heads and layers; where heads differ, one per layer with a row for each of this GPU's heads.
PlanPrice plan_price(const Scenario& scenario, const PolicySet& set);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_APP_FORMATS_H_
