#include "models/profiles/retention_table.h"

#include <fmt/format.h>

#include <iterator>

#include "models/profiles/retention_stats.h"

namespace kvtwin {

std::string retention_table(const RetentionProfile& p, double alpha, uint32_t group) {
  std::string out;
  const auto add = std::back_inserter(out);
  const std::vector<double> b = budgets(p.mu, p.sigma, alpha);
  double retained = 0;
  for (const double x : p.mu) retained += x / p.heads();
  const RankStability ranks = rank_stability(p, TieOrder::kAverage);
  fmt::format_to(add, "{}: {}, {}, {} of {} x {} heads, {} contexts\n\n", p.name, p.model, p.scorer, p.level,
                 p.layers, p.kv_heads, p.context_tokens.size());
  fmt::format_to(add, "  kept fraction, mean    {:>8.3f}   beside a window of {}; {} was asked for in all\n",
                 retained, p.window_tokens, p.base_ratio);
  fmt::format_to(add, "  reserved / kept        {:>8.2f}   mu + {} sigma\n", inflation(p.mu, b), alpha);
  fmt::format_to(add, "  covered                {:>8.1f} %\n", 100 * coverage(p, b));
  fmt::format_to(add, "  rank stability         {:>8.3f}   lowest {:.3f}\n", ranks.mean, ranks.lowest);
  const struct {
    const char* name;
    GroupScope scope;
    uint32_t group;
  } rows[] = {{"one group", GroupScope::kAdjacent, p.heads()},
              {"adjacent", GroupScope::kAdjacent, group},
              {"per layer", GroupScope::kPerLayer, group},
              {"across layers", GroupScope::kCrossLayer, group},
              {"each head", GroupScope::kAdjacent, 1}};
  fmt::format_to(add, "\nreserved of the full context, by groups of {} heads\n", group);
  for (const auto& row : rows) {
    fmt::format_to(add, "  {:<22} {:>8.3f}\n", row.name,
                   allocated_fraction(b, group_order(p, b, row.scope), row.group));
  }
  return out;
}

}  // namespace kvtwin
