// Translates a scenario's KV formats and partition for the policy, the memory model and the cost models.

#ifndef KVTWIN_SCENARIOS_APP_FORMATS_H_
#define KVTWIN_SCENARIOS_APP_FORMATS_H_

#include <optional>
#include <string>

#include "engine/kv/store/mixed_precision_pool.h"
#include "engine/methods/config.h"
#include "kernels/grids/partition.h"
#include "models/catalog/llm.h"
#include "models/cost/plan_price.h"
#include "models/profiles/recall_profile.h"
#include "models/profiles/retention_profile.h"
#include "scenarios/load/scenario.h"

namespace kvtwin {

// Fills the specs of `set`, whose names are already set, and reads the files that the options name. `llm` is
// the scenario's model; a profile must have its size.
void load_format_specs(const Scenario& scenario, const LlmSpec& llm, PolicySet* set, Errors* errors);

// How attention work is divided, for prices. Adds an error for a profile that does not fit `llm`.
PartitionSpec load_partition(const Scenario& scenario, const LlmSpec& llm, Errors* errors);

// Loads the retention profile that option `field` names as `written`. Nullopt, with an error at the option,
// if the profile is invalid.
std::optional<RetentionProfile> load_retention(const Scenario& scenario, const char* field,
                                               const std::string& written, Errors* errors);

// The recall profile that simulation.retrieval.profile names; nullopt if it names none. Errors: the profile
// is invalid, or belongs to another model.
Result<std::optional<RecallProfile>> load_recall_profile(const Scenario& scenario, const LlmSpec& llm);

// Sets llm->kv to the format that the precision policy stores. For bf16 the model's own format stays.
// REQUIRES: the policy's name is known.
void apply_precision(const Scenario& scenario, LlmSpec* llm);
// Bytes of the KV entries that requests hold in bf16 outside their pages (KIVI), for all requests on one GPU.
uint64_t exact_entries_bytes(const Scenario& scenario, const LlmSpec& llm, uint32_t tp);

// triaxial: the bytes of an int2 page, where an int4 page has `page_bytes`.
uint64_t int2_page_bytes(const Scenario& scenario, const LlmSpec& llm, uint64_t page_bytes);
// triaxial: how many pages of each format fit `kv_bytes` of one GPU, divided by the planned bits per value.
MixedPrecisionPoolSize mixed_precision_pool_pages(const LlmSpec& llm, uint32_t tp, uint32_t page_tokens,
                                                  uint64_t kv_bytes, const PrecisionSpec& spec);

// triaxial: the number of int2 pages among `pages`, for the planned ratio of int2 to int4 entries.
uint32_t pages_int2(uint32_t pages, const PrecisionSpec& spec);

// The price of what the partition policy plans on the host in each step: one plan where every request has one
// length in all heads and layers; where heads differ, one plan per layer with a row for each head of this
// GPU.
PlanPrice plan_price(const Scenario& scenario, const PolicySet& set);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_APP_FORMATS_H_
