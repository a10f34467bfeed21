#include "scenarios/app/compose_partition.h"

#include "engine/methods/budget_groups.h"
#include "engine/methods/registry.h"
#include "engine/methods/traits.h"
#include "scenarios/app/compose_parts.h"
#include "scenarios/app/formats.h"

namespace kvtwin {
std::vector<Fraction> planned_fractions(const PolicySet& set, const PartitionSpec& spec) {
  const std::vector<Fraction> budgets =
      spec.head_budgets.empty() ? clustering_budgets(set) : spec.head_budgets;
  if (budgets.size() != set.layout_spec.heads()) return {};
  const GroupMap groups = make_groups(set);
  std::vector<Fraction> out;
  const std::vector<Fraction> largest = groups.largest(budgets);
  const uint32_t kv_heads = set.layout_spec.kv_heads;
  for (uint32_t head = 0; head < budgets.size(); ++head) {
    out.push_back(largest[groups.group_of(head)]);
    if (spec.aot_weight == AotWeight::kGroupMax) continue;
    unsigned __int128 sum = 0;
    uint32_t members = 0;
    for (uint32_t h = head / kv_heads * kv_heads; h < (head / kv_heads + 1) * kv_heads; ++h) {
      if (groups.group_of(h) != groups.group_of(head)) continue;
      sum += budgets[h];
      ++members;
    }
    out.back() = static_cast<Fraction>(sum / members);
  }
  return out;
}

std::optional<sim::PartitionPriceSpec> partition_price_spec(const Scenario& scenario,
                                                            const Composed& composed) {
  const PolicySet& set = composed.options.engines.front().policies;
  const v1::PartitionOptions& options = scenario.values.policies().partition_options();
  if (options.priced() == "never" || !retrieval_traits(set.retrieval).reads_everything()) return std::nullopt;
  if (options.priced() == "ragged" && !heads_differ(set)) return std::nullopt;
  sim::PartitionPriceSpec out;
  out.kind = partition_kind(set.partition);
  Errors errors;  // compose() has reported them
  out.partition = load_partition(scenario, composed.llm, &errors);
  out.grid.sms = static_cast<uint32_t>(composed.device.sm_count.value);
  out.grid.ctas_per_sm = options.ctas_per_sm();
  out.grid.page_tokens = composed.options.engines.front().page_tokens;
  out.gpus = scenario.values.engines().tensor_parallel();
  out.layout = set.layout_spec;
  out.held = held_fractions(set);
  const GroupMap groups = make_groups(set);
  out.planned = planned_fractions(set, out.partition);
  for (uint32_t head = 0; head < out.held.size(); ++head) out.groups.push_back(groups.group_of(head));
  return out;
}

}  // namespace kvtwin
