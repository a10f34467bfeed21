#include "scenarios/evaluate/kv_bytes.h"

#include <algorithm>

#include "engine/methods/traits.h"
#include "scenarios/app/compose_parts.h"
#include "scenarios/app/formats.h"

namespace kvtwin {
namespace {

// Bytes of one token in all layers and heads, in the format of the pages. A page holds one head group.
double page_token_bytes(const Composed& composed) {
  const auto groups = static_cast<double>(page_groups(composed.options.engines.front().policies));
  return groups * static_cast<double>(composed.facts.front().page_bytes) / composed.facts.front().page_tokens;
}

// Mean size over both formats, relative to the larger one.
double low_bit_factor(const Composed& composed, const Summary& sum) {
  if (sum.pages_int2 == 0 || sum.pages_held_mean <= 0) return 1;
  const double values = 2.0 * composed.llm.head_dim;
  const double low_bit = composed.llm.kv_low_bit.bytes(values) / composed.llm.kv.bytes(values);
  return 1 - (1 - low_bit) * sum.pages_int2_held_mean / sum.pages_held_mean;
}

// The fraction of a head's `kv_entries` that a decode reads, as a mean over layers.
double read_fraction(const Composed& composed, double kv_entries) {
  const PolicySet& policies = composed.options.engines.front().policies;
  if (retrieval_traits(policies.retrieval).reads_everything() || kv_entries == 0) return 1;
  const double dense =
      static_cast<double>(std::min(policies.retrieval_spec.layers_dense, composed.llm.layers)) /
      composed.llm.layers;
  const double chosen = std::min(1.0, policies.retrieval_spec.budget_tokens / kv_entries);
  return dense + (1 - dense) * chosen;
}

// Bytes of entries that a decoding request holds exact outside its pages. TriAxialKV's waiting entries do not
// count: they are flushed at the end of the prompt.
double exact_bytes(const Scenario& scenario, const Composed& composed) {
  if (precision_traits(scenario.values.policies().precision()).exact != ExactTokens::kResidual) return 0;
  return static_cast<double>(exact_entries_bytes(scenario, composed.llm, 1)) /
         scenario.values.limits().requests_max();
}

}  // namespace

KvBytes kv_bytes(const Scenario& scenario, const Composed& composed, const Summary& sum) {
  if (sum.output_tokens <= sum.finished) return {};
  const double decodes = static_cast<double>(sum.output_tokens - sum.finished);
  const double kv_entries = static_cast<double>(sum.reads_effective) / decodes;
  KvBytes out;
  out.kept = kv_entries * page_token_bytes(composed) * low_bit_factor(composed, sum) +
             exact_bytes(scenario, composed);
  out.read = out.kept * read_fraction(composed, kv_entries);
  return out;
}

}  // namespace kvtwin
