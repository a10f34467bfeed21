#include "scenarios/app/method_work.h"

#include "engine/methods/outcome_rules.h"
#include "engine/methods/registry.h"
#include "engine/methods/retention.h"
#include "engine/methods/scorer_spec.h"
#include "engine/methods/traits.h"
#include "kernels/scoring/scorer.h"
#include "scenarios/app/compose_parts.h"
#include "scenarios/app/compose_values.h"

namespace kvtwin {
namespace {

using kernels::ScoreSource;

void add_scorer(const kernels::ScorerDefinition& scorer, const PolicySet& set, MethodWork* work) {
  const ScoreSource source = scorer.source;
  work->gates = source == ScoreSource::kGates;
  work->sums = source == ScoreSource::kSums || source == ScoreSource::kPromptSums;
  work->sums_decodes = source == ScoreSource::kSums;
  work->captures = source == ScoreSource::kWindowQueries || source == ScoreSource::kAllQueries;
  work->captures_decodes = work->captures && scorer.watches_decodes;
  if (source == ScoreSource::kWindowQueries || source == ScoreSource::kProbes)
    work->asked_rows = captured_queries(set.scorer, set.scorer_spec);
}

void add_retention(const CoreConfig& config, MethodWork* work) {
  const PolicySet& set = config.policies;
  const PolicyAxes axes = make_axes(set);
  const Retention retention(config, axes);
  const BudgetTraits budget = budget_traits(set.budget);
  work->groups = page_groups(set);
  work->staged = retention.staged();
  work->counts_by_scores = !budget.known_at_admission() && !retention.known();
  work->moves = retention.slot_retention() == SlotRetention::kMove;
  if (retention.slot_retention() == SlotRetention::kRing) work->ring_slots = set.budget_spec.kv_entries;
  work->retained_fraction = static_cast<double>(set.budget_spec.ratio) / static_cast<double>(kWhole);
  if (budget.entries) work->retained_entries = set.budget_spec.kv_entries;
}

}  // namespace

bool adds_operations(const CoreConfig& config) {
  return drops(config) || precision_traits(config.policies.precision).packed() ||
         !retrieval_traits(config.policies.retrieval).reads_everything();
}

MethodWork method_work(const CoreConfig& config, const LlmSpec& llm) {
  const PolicySet& set = config.policies;
  MethodWork work;
  work.layers = llm.layers, work.kv_heads = llm.kv_heads;
  work.query_heads = llm.query_heads, work.head_dim = llm.head_dim;
  work.page_tokens = config.page_tokens;
  const PrecisionTraits precision = precision_traits(set.precision);
  work.two_formats = precision.by_tag;
  const RetrievalTraits retrieval = retrieval_traits(set.retrieval);
  work.chooses = !retrieval.reads_everything();
  work.recalls = recalls(retrieval.kind);
  work.ahead = speculates(retrieval.kind, set.retrieval_spec.speculation);
  if (work.chooses) work.selectable = selectable_pages(set.retrieval_spec, config.page_tokens);
  work.lists = drops(config) && !precision.packed();
  if (!work.lists) return work;
  if (const kernels::ScorerDefinition* const scorer = kernels::find_scorer(set.scorer))
    add_scorer(*scorer, set, &work);
  add_retention(config, &work);
  return work;
}

}  // namespace kvtwin
