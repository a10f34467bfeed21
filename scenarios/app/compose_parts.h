// Functions of compose() that have files of their own.

#ifndef KVTWIN_SCENARIOS_APP_COMPOSE_PARTS_H_
#define KVTWIN_SCENARIOS_APP_COMPOSE_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/front_end.h"
#include "engine/methods/budget_groups.h"
#include "engine/methods/config.h"
#include "engine/methods/traits.h"
#include "models/catalog/llm.h"
#include "scenarios/load/scenario.h"
#include "traces/format/sink.h"

namespace kvtwin {

class CostModel;
struct Composed;

// Prefixes the path of an error from a catalog or a model with `where`, the place in the scenario.
inline void add_error(Errors* errors, const std::string& where, const Error& inner) {
  errors->push_back({where, inner.where.empty() ? inner.what : inner.where + ": " + inner.what, inner.hint});
}

// True if our CUDA engine reads requests with dropped slots through lists of entries: bf16 pages of several
// tokens, every entry read.
bool lists_entries(const CoreConfig& config);
// Sets what the order of prefix eviction reads of the model and of `gpus` GPUs per engine. REQUIRES:
// pages_gpu is set.
void configure_eviction(const Composed& composed, uint32_t gpus, CoreConfig* config);

// The cost model of engine kind `of`; null if an error was added. Notes what the policies add to steps in
// *out.
std::unique_ptr<CostModel> make_cost(const Scenario& scenario, size_t of, Composed* out, Errors* errors);

// The policies that the scenario chooses, with their numbers. Names are not checked here.
PolicySet policy_set(const Scenario& scenario, const LlmSpec& llm, Errors* errors);
// The number of head groups, each of which has pages of its own.
uint32_t page_groups(const PolicySet& set);
// The fraction of ranked tokens that each head's storage holds, by layer * kv_heads + head: the largest of
// its head group, all ones where heads do not differ.
std::vector<Fraction> held_fractions(const PolicySet& set);
// Entries that heads hold without retaining them, because their group's longest head does, relative to the
// ranked entries that a mean group drops
// (docs/design/methods/tangram.md#fragmentation: max over members, less the member's own).
double group_slack(const PolicySet& set);
bool heads_differ(const PolicySet& set);
// True if the backend must report what compressions retain.
bool backend_reports_retained(const CoreConfig& config);
// Bytes on one GPU.
uint64_t staging_bytes(const Scenario& scenario, const LlmSpec& llm, const PolicySet& set);

// Adds engines on other hardware after those of `composed`, and chooses which engines run prefill.
struct Composed;
void compose_cluster(const Scenario& scenario, Composed* composed, Errors* errors);

// Pages of one engine's host and disk tiers; `pages` is the GPU's number of pages.
uint32_t pages_on_host(const Scenario& scenario, uint64_t page_bytes, uint32_t pages, const Composed& out,
                       Errors* errors);
uint32_t pages_on_disk(const Scenario& scenario, uint64_t page_bytes, const Composed& out, Errors* errors);

FrontEnd front_end_of(const v1::Cost& cost);
// Reads the scenario's trace into out->client and out->tokens; `on_session`, if given, is called for each
// session.
void load_trace(const Scenario& scenario, const std::function<void()>& on_session, Composed* out,
                Errors* errors);
// Reads the scenario's trace into `sink`. Sentences for the user go to *notes, which may be null.
Result<void> read_trace(const Scenario& scenario, std::vector<std::string>* notes, TraceSink* sink);

// Adds a note if requests fit a window which the scenario made larger than the model's own.
void note_beyond_window(Composed* out);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_APP_COMPOSE_PARTS_H_
