#include "engine/methods/combination_pairs.h"

#include <algorithm>
#include <bitset>

#include "engine/base/check.h"
#include "engine/methods/axis_factories.h"
#include "engine/methods/registry.h"

namespace kvtwin {
namespace {

size_t index_of(Choice axis) {
  const auto at = std::find(kPairAxes.begin(), kPairAxes.end(), axis);
  KVT_CHECK(at != kPairAxes.end());
  return static_cast<size_t>(at - kPairAxes.begin());
}

using Forbidding = std::bitset<128>;  // rows, by index

Forbidding forbidding(const Combination& all, Computes where) {
  const auto rows = combination_rows();
  KVT_CHECK(rows.size() <= 128);
  Forbidding out;
  for (size_t i = 0; i < rows.size(); ++i) out[i] = holds_for(rows[i], where) && rows[i].applies(all);
  return out;
}

bool all_not_built(const Forbidding& by) {
  const auto rows = combination_rows();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (by[i] && rows[i].verdict == Support::kRefused) return false;
  }
  return true;
}

}  // namespace

struct CombinationPairs::Search {
  Computes where;
  std::array<std::string_view, kAxes> fixed;  // names; empty: any
  PolicySet set;
  Combination all;
  bool works = false, buildable = false;
  Forbidding always = Forbidding().set(), fewest = Forbidding().set();
  PolicySet best;
  bool best_cache = false;

  void try_it() {
    for (const bool cache : {true, false}) {
      all.prefix_cache = cache;
      const Forbidding by = forbidding(all, where);
      always &= by;
      buildable = buildable || all_not_built(by);
      if (by.count() < fewest.count() || best.scorer.empty()) fewest = by, best = set, best_cache = cache;
      works = by.none();
      if (works) return;
    }
  }
};

CombinationPairs::CombinationPairs() {
  for (const PolicyInfo& policy : all_policies()) {
    const std::string name(policy.name);
    for (size_t axis = 0; axis < kAxes; ++axis) {
      if (policy.axis != name_of(kPairAxes[axis])) continue;
      if (kPairAxes[axis] == Choice::kScorer) {
        add_scorer(name);
      } else {
        options_[axis].push_back({name, {}, {}, {}, false});
      }
    }
  }
  const IdentityTraits shared = identity_traits(PolicySet().identity);
  for (Option& option : options_[index_of(Choice::kIdentity)])
    option.repeats = option.name != PolicySet().identity &&
                     identity_traits(option.name).shares_across_sessions == shared.shares_across_sessions;
  std::vector<Option>& partitions = options_[index_of(Choice::kPartition)];
  for (Option& option : partitions) {
    const auto first = std::find_if(partitions.begin(), partitions.end(), [&](const Option& one) {
      return lists_splits(partition_kind(one.name)) == lists_splits(partition_kind(option.name));
    });
    option.repeats = &option != &*first;
  }
}

void CombinationPairs::add_scorer(const std::string& name) {
  std::vector<Option>& scorers = options_[index_of(Choice::kScorer)];
  using T = CompressionTrigger;
  for (const T trigger : {T::kAtNoTime, T::kChunkEnd, T::kPromptEnd, T::kTurnStart, T::kDecodeStep}) {
    for (const bool closed : {false, true}) {
      Option option{name, {}, trigger, {}, false};
      option.scorer_spec.compression_trigger = trigger;
      option.scorer_spec.window_closed = closed;
      if (validate_scorer(name, option.scorer_spec)) continue;
      option.causality = make_scorer(name, option.scorer_spec)->causality();
      const ScorerTraits traits = scorer_traits(name);
      option.repeats = std::any_of(scorers.begin(), scorers.end(), [&](const Option& one) {
        return one.trigger == trigger && one.causality == option.causality &&
               scorer_traits(one.name) == traits;
      });
      scorers.push_back(option);
    }
  }
}

void CombinationPairs::choose(Choice axis, const Option& option, PolicySet* set, Combination* all) {
  switch (axis) {
    case Choice::kScorer:
      set->scorer = option.name, set->scorer_spec = option.scorer_spec;
      all->scorer = scorer_traits(option.name);
      all->trigger = option.trigger, all->causality = option.causality;
      break;
    case Choice::kBudget:
      set->budget = option.name, all->budget = budget_traits(option.name);
      break;
    case Choice::kLayout:
      set->layout = option.name, all->layout = layout_traits(option.name);
      break;
    case Choice::kPrecision:
      set->precision = option.name, all->precision = precision_traits(option.name);
      break;
    case Choice::kPlacement:
      set->placement = option.name, all->placement = placement_traits(option.name);
      break;
    case Choice::kRetrieval:
      set->retrieval = option.name, all->retrieval = retrieval_traits(option.name);
      break;
    case Choice::kPartition:
      set->partition = option.name, all->partition = partition_kind(option.name);
      break;
    case Choice::kIdentity:
      set->identity = option.name, all->identity = identity_traits(option.name);
      break;
    default:
      KVT_CHECK(!"an axis of pairs");
  }
}

void CombinationPairs::search(size_t axis, Search* search) const {
  if (axis == kAxes) return search->try_it();
  for (const Option& option : options_[axis]) {
    const std::string_view fixed = search->fixed[axis];
    if (fixed.empty() ? option.repeats : option.name != fixed) continue;
    choose(kPairAxes[axis], option, &search->set, &search->all);
    this->search(axis + 1, search);
    if (search->works) return;
  }
}

std::vector<std::string> CombinationPairs::names(Choice axis) const {
  std::vector<std::string> out;
  for (const Option& option : options_[index_of(axis)]) {
    if (out.empty() || out.back() != option.name) out.push_back(option.name);
  }
  return out;
}

PairVerdict CombinationPairs::verdict(Choice a, std::string_view of_a, Choice b, std::string_view of_b,
                                      Computes where) const {
  Search search{.where = where, .fixed = {}, .set = {}, .all = {}, .best = {}};
  search.best.scorer.clear();
  search.fixed[index_of(a)] = of_a, search.fixed[index_of(b)] = of_b;
  PairVerdict out;
  // What one choice forbids alone needs no search.
  for (size_t axis = 0; axis < kAxes; ++axis) {
    for (const Option& option : options_[axis]) {
      if (option.name != search.fixed[axis]) continue;
      choose(kPairAxes[axis], option, &search.set, &search.all);
      break;
    }
  }
  for (const CombinationRow& row : combination_rows()) {
    const bool alone = row.of.second == Choice::kAbsent && row.of.first != Choice::kScorer;
    if (!alone || !holds_for(row, where) || !row.applies(search.all)) continue;
    return {row.verdict, search.set, false, &row};
  }
  this->search(0, &search);
  out.set = search.best, out.prefix_cache = search.best_cache;
  if (search.works) return out;
  out.verdict = search.buildable ? Support::kNotBuilt : Support::kRefused;
  const auto rows = combination_rows();
  for (size_t i = rows.size(); i-- > 0;) {
    if (search.always[i]) out.reason = &rows[i];
  }
  return out;
}

}  // namespace kvtwin
