#include "scenarios/evaluate/kept_bytes.h"

#include <algorithm>

#include "scenarios/compose_parts.h"
#include "scenarios/formats.h"

namespace kvtwin {
namespace {

// One token, all layers and heads, in the format of the pages. A page is one head group's.
double page_token_bytes(const Composed& composed) {
  const auto groups = static_cast<double>(page_groups(composed.options.engines.front().policies));
  return groups * static_cast<double>(composed.facts.front().page_bytes) / composed.facts.front().page_tokens;
}

// Mean over formats, as a share of what the wide one takes.
double narrow_factor(const Composed& composed, const Summary& sum) {
  if (sum.pages_int2 == 0 || sum.pages_held_mean <= 0) return 1;
  const double values = 2.0 * composed.llm.head_dim;
  const double narrow = composed.llm.kv_narrow.bytes(values) / composed.llm.kv.bytes(values);
  return 1 - (1 - narrow) * sum.pages_int2_held_mean / sum.pages_held_mean;
}

// Of `cells` that a head keeps, the share that a decode reads, mean over layers.
double read_share(const Composed& composed, double cells) {
  const PolicySet& policies = composed.options.engines.front().policies;
  if (policies.retrieval == "all" || cells == 0) return 1;
  const double dense =
      static_cast<double>(std::min(policies.retrieval_spec.layers_dense, composed.llm.layers)) /
      composed.llm.layers;
  const double chosen = std::min(1.0, policies.retrieval_spec.budget_tokens / cells);
  return dense + (1 - dense) * chosen;
}

// Kept exact for a call beside its pages while it decodes. TriAxialKV's waiting cells are not: they are
// flushed when the prompt ends.
double exact_bytes(const Scenario& scenario, const Composed& composed) {
  if (scenario.values.policies().precision() != "kivi_int2") return 0;
  return static_cast<double>(exact_cells_bytes(scenario, composed.llm, 1)) /
         scenario.values.limits().calls_max();
}

}  // namespace

KeptBytes kept_bytes(const Scenario& scenario, const Composed& composed, const Summary& sum) {
  if (sum.output_tokens <= sum.finished) return {};
  const double decodes = static_cast<double>(sum.output_tokens - sum.finished);
  const double cells = static_cast<double>(sum.reads_effective) / decodes;
  KeptBytes out;
  out.kept =
      cells * page_token_bytes(composed) * narrow_factor(composed, sum) + exact_bytes(scenario, composed);
  out.read = out.kept * read_share(composed, cells);
  return out;
}

}  // namespace kvtwin
