// KvEntryBudget computes how many KV entries head groups retain under the dynamic budgets, where the values
// decide (docs/design/methods/tangram.md#levels, #released-chunks).
//
// Candidates of one layer, or of all layers, are ranked together. A group is as long as its longest member;
// the other members fill the same length with more of their own best KV entries.

#ifndef KVTWIN_ENGINE_COMMON_KV_ENTRY_BUDGET_H_
#define KVTWIN_ENGINE_COMMON_KV_ENTRY_BUDGET_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/common/ranking.h"
#include "engine/methods/config.h"
#include "engine/methods/outcome_rules.h"

namespace kvtwin::cpu {

class KvEntryBudget {
 public:
  // `groups` must outlive it.
  KvEntryBudget(const PolicySet& set, uint32_t page_tokens, const GroupMap* groups);

  // By group: the number of candidates that each member retains, when `end` tokens are computed. REQUIRES:
  // the budget is dynamic; all heads have the same number of KV entries (none was dropped before).
  std::vector<uint32_t> counts(std::span<const RankedHead> heads, uint32_t end) const;
  // The mean number per head, for scorers that assign a part of it by another rule (CriticalKV).
  uint32_t expected(uint32_t candidates, uint32_t end) const { return rule_.expected(candidates, end); }
  // By group: what its heads hold.
  std::vector<GroupEntries> entries(std::span<const RankedHead> heads, uint32_t end) const;

 private:
  // A group may occur several times, and in several layers.
  std::vector<CountRule::Ranked> by_layer(std::span<const RankedHead> heads, uint32_t end) const;
  std::vector<CountRule::Ranked> of_layer(std::span<const RankedHead> heads, uint32_t end) const;
  std::vector<CountRule::Ranked> across_layers(std::span<const RankedHead> heads, uint32_t end) const;

  const CountRule rule_;
  const uint32_t kv_heads_;
  const GroupMap* const groups_;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_COMMON_KV_ENTRY_BUDGET_H_
