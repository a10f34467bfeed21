#include "engine/methods/budget_groups.h"

#include "engine/methods/pyramid.h"
#include "engine/methods/traits.h"

namespace kvtwin {

std::vector<Fraction> clustering_budgets(const PolicySet& set) {
  const BudgetSpec& spec = set.budget_spec;
  const LayoutSpec& layout = set.layout_spec;
  std::vector<Fraction> out;
  const HeadTable table = budget_traits(set.budget).table;
  if (table == HeadTable::kCalibrated) return reserved_fractions(spec);
  if (table == HeadTable::kMasks) {
    for (const bool all : spec.keeps_all) out.push_back(all ? kWhole : 0);
  }
  if (table == HeadTable::kLayers) {
    const std::vector<uint32_t> kv_entries =
        pyramid_exact({layout.layers, ranked_entries(spec), 0, spec.pyramid_beta}, UINT32_MAX);
    for (const uint32_t of_layer : kv_entries) out.insert(out.end(), layout.kv_heads, of_layer);
  }
  return out;
}

GroupMap make_groups(const PolicySet& set) {
  LayoutSpec spec = set.layout_spec;
  if (!layout_traits(set.layout).has_groups) spec.heads_per_group = 0;
  const std::vector<Fraction> budgets = clustering_budgets(set);
  return GroupMap(spec, budgets.size() == spec.heads() ? budgets : std::vector<Fraction>{});
}

}  // namespace kvtwin
