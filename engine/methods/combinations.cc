#include "engine/methods/combinations.h"

#include <array>
#include <vector>

#include "engine/methods/combination_rows.h"
#include "engine/methods/registry.h"

namespace kvtwin {
namespace {

constexpr std::array<std::string_view, 13> kChoiceNames = {
    "",          "scorer",   "budget",       "layout",     "precision",  "placement", "retrieval",
    "partition", "identity", "prefix_cache", "preemption", "page_order", "disk"};

std::vector<CombinationRow> all_rows() {
  std::vector<CombinationRow> out(policy_rows().begin(), policy_rows().end());
  out.insert(out.end(), engine_rows().begin(), engine_rows().end());
  return out;
}

}  // namespace

std::string_view name_of(Choice choice) { return kChoiceNames[static_cast<size_t>(choice)]; }

std::span<const CombinationRow> combination_rows() {
  static const std::vector<CombinationRow> kRows = all_rows();
  return kRows;
}

Combination combination_of(const PolicyAxes& axes, const PolicySet& set, const CoreConfig& config) {
  Combination out;
  out.scorer = scorer_traits(set.scorer);
  out.trigger = axes.scorer->compression_trigger();
  out.causality = axes.scorer->causality();
  out.budget = budget_traits(set.budget);
  out.layout = layout_traits(set.layout);
  out.precision = precision_traits(set.precision);
  out.placement = placement_traits(set.placement);
  out.retrieval = retrieval_traits(set.retrieval);
  out.partition = partition_kind(set.partition);
  out.identity = identity_traits(set.identity);
  out.requantises = set.precision_spec.ageing == Ageing::kRequantise;
  out.bits_by_age = !bits_are_prefix_closed(set.precision_spec);
  out.prefix_cache = config.prefix_cache;
  out.swaps = config.preemption == PreemptionKind::kSwap;
  out.oldest_first = config.page_order == PageOrder::kOldestFirst;
  out.has_disk = config.pages_disk > 0;
  return out;
}

bool holds_for(const CombinationRow& row, Computes where) { return (row.computes & bit_of(where)) != 0; }

const CombinationRow* find_problem(const Combination& all, Computes where) {
  // A reason of principle first: it holds whatever will be built.
  for (const Support verdict : {Support::kRefused, Support::kNotBuilt}) {
    for (const CombinationRow& row : combination_rows()) {
      if (row.verdict == verdict && holds_for(row, where) && row.applies(all)) return &row;
    }
  }
  return nullptr;
}

std::string sentence(const CombinationRow& row, const PolicySet& set, const CoreConfig& config) {
  std::string text = std::string(row.why);
  if (row.verdict == Support::kNotBuilt && text.find("not built") == std::string::npos)
    text += " (not built yet)";
  text += "; " + std::string(row.remedy);
  const std::pair<Choice, std::string> names[] = {{Choice::kScorer, set.scorer},
                                                  {Choice::kBudget, set.budget},
                                                  {Choice::kLayout, set.layout},
                                                  {Choice::kPrecision, set.precision},
                                                  {Choice::kPlacement, set.placement},
                                                  {Choice::kRetrieval, set.retrieval},
                                                  {Choice::kPartition, set.partition},
                                                  {Choice::kIdentity, set.identity},
                                                  {Choice::kDisk, std::to_string(config.pages_disk)}};
  for (const auto& [choice, name] : names) {
    const std::string word = "{" + std::string(name_of(choice)) + "}";
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + name.size()))
      text.replace(at, word.size(), name);
  }
  return text;
}

std::optional<std::string> cannot_combine(const CoreConfig& config, Computes where) {
  const PolicySet& set = config.policies;
  const CombinationRow* const row = find_problem(combination_of(make_axes(set), set, config), where);
  if (row == nullptr) return std::nullopt;
  return sentence(*row, set, config);
}

}  // namespace kvtwin
