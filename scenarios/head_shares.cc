#include "scenarios/head_shares.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine/policy/budget_groups.h"
#include "engine/policy/registry.h"
#include "scenarios/compose_parts.h"

namespace kvtwin {

std::vector<Share> own_shares(const PolicySet& set) {
  std::vector<Share> own = clustering_budgets(set);
  if (!own.empty()) return own;
  const BudgetSpec& spec = set.budget_spec;
  for (const Share mean : spec.mu) {
    const auto share = static_cast<unsigned __int128>(mean) * (spec.shares ? spec.ratio : kWhole) >> 32;
    own.push_back(static_cast<Share>(std::min<unsigned __int128>(share, kWhole)));
  }
  return own;
}

std::string heads_json(const PolicySet& set) {
  const std::vector<Share> own = own_shares(set);
  if (own.size() != set.layout_spec.heads() || !layout_has_groups(set.layout) || set.budget == "pyramid")
    return {};
  const auto list = [](const std::vector<Share>& shares) {
    std::vector<std::string> out;
    for (const Share share : shares) {
      const double part = static_cast<double>(std::min(share, kWhole)) / static_cast<double>(kWhole);
      out.push_back(fmt::format("{:.5f}", part));
    }
    return fmt::format("[{}]", fmt::join(out, ","));
  };
  return fmt::format("{{\"layers\":{},\"kv_heads\":{},\"held\":{},\"needed\":{}}}\n", set.layout_spec.layers,
                     set.layout_spec.kv_heads, list(held_shares(set)), list(own));
}

}  // namespace kvtwin
