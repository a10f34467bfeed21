#include "scenarios/app/head_fractions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine/methods/budget_groups.h"
#include "engine/methods/registry.h"
#include "engine/methods/traits.h"
#include "scenarios/app/compose_parts.h"

namespace kvtwin {

std::vector<Fraction> own_fractions(const PolicySet& set) {
  std::vector<Fraction> own = clustering_budgets(set);
  if (!own.empty()) return own;
  const BudgetSpec& spec = set.budget_spec;
  for (const Fraction mean : spec.mu) {
    const auto fraction = static_cast<unsigned __int128>(mean) * (spec.relative ? spec.ratio : kWhole) >> 32;
    own.push_back(static_cast<Fraction>(std::min<unsigned __int128>(fraction, kWhole)));
  }
  return own;
}

std::string heads_json(const PolicySet& set) {
  const std::vector<Fraction> own = own_fractions(set);
  if (own.size() != set.layout_spec.heads() || !layout_traits(set.layout).has_groups ||
      budget_traits(set.budget).table == HeadTable::kLayers)
    return {};
  const auto list = [](const std::vector<Fraction>& fractions) {
    std::vector<std::string> out;
    for (const Fraction fraction : fractions) {
      const double part = static_cast<double>(std::min(fraction, kWhole)) / static_cast<double>(kWhole);
      out.push_back(fmt::format("{:.5f}", part));
    }
    return fmt::format("[{}]", fmt::join(out, ","));
  };
  return fmt::format("{{\"layers\":{},\"kv_heads\":{},\"held\":{},\"needed\":{}}}\n", set.layout_spec.layers,
                     set.layout_spec.kv_heads, list(held_fractions(set)), list(own));
}

}  // namespace kvtwin
