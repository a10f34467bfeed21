// Parts of compose() that have files of their own.

#ifndef KVTWIN_SCENARIOS_APP_COMPOSE_PARTS_H_
#define KVTWIN_SCENARIOS_APP_COMPOSE_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/methods/budget_groups.h"
#include "engine/methods/config.h"
#include "models/catalog/llm.h"
#include "models/cost_tables/method_cost.h"
#include "scenarios/load/scenario.h"
#include "traces/format/sink.h"

namespace kvtwin {

class CostModel;
struct Composed;

// Joins the place in the scenario with what a catalog or model said.
inline void add_error(Errors* errors, const std::string& where, const Error& inner) {
  errors->push_back({where, inner.where.empty() ? inner.what : inner.where + ": " + inner.what, inner.hint});
}

// What the policies' steps are counted by, besides their shapes.
inline MethodFacts method_facts(const CoreConfig& config, const LlmSpec& llm) {
  const PolicySet& set = config.policies;
  return {set.layout == "ring" ? set.budget_spec.kv_entries : 0,
          set.retrieval == "all" && set.scorer == "h2o" ? llm.kv_heads : 0};
}

// Whether our engine reads requests with dropped slots from lists of entries: bf16 in pages of several
// tokens, and all of them.
bool lists_entries(const CoreConfig& config);

// Of the engines of kind `of`. Null: an error was added. What the policies add to steps is noted in *out.
std::unique_ptr<CostModel> make_cost(const Scenario& scenario, size_t of, Composed* out, Errors* errors);

// What the scenario chooses, with its numbers; names are not checked here.
PolicySet policy_set(const Scenario& scenario, const LlmSpec& llm, Errors* errors);
// Into how many pages the set cuts what a page of all heads would hold.
uint32_t page_groups(const PolicySet& set);
// What each head holds of ranked tokens, by layer * kv_heads + head: its group's largest share, all where
// heads are not told apart; and whether heads of one layer differ.
std::vector<Fraction> held_fractions(const PolicySet& set);
// Of a ranked token that a mean group drops: the KV entries that heads hold beside it without needing them
// (docs/design/methods/tangram.md#fragmentation: max over members, less the member's own; relative to what
// groups drop).
double group_slack(const PolicySet& set);
bool heads_differ(const PolicySet& set);
// Whether the backend has to say what compressions keep.
bool backend_reports_retained(const CoreConfig& config);
// Of one GPU.
uint64_t staging_bytes(const Scenario& scenario, const LlmSpec& llm, const PolicySet& set);

// Engines on other hardware behind those that `composed` has, and which of all compute prompts.
struct Composed;
void compose_cluster(const Scenario& scenario, Composed* composed, Errors* errors);

// Pages of the tiers behind the GPU, of one engine; `pages` are the GPU's.
uint32_t pages_on_host(const Scenario& scenario, uint64_t page_bytes, uint32_t pages, const Composed& out,
                       Errors* errors);
uint32_t pages_on_disk(const Scenario& scenario, uint64_t page_bytes, const Composed& out, Errors* errors);

// Pushes the scenario's trace into `sink`. What the user should know goes to *notes, which may be null.
Result<void> read_trace(const Scenario& scenario, std::vector<std::string>* notes, TraceSink* sink);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_APP_COMPOSE_PARTS_H_
