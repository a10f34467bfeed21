// Integer rules that the engines, forced outcomes and behaviour models share, so that they count alike: how
// many KV entries a head group retains once they are ranked or drawn, and how many chosen pages a head can
// miss.

#ifndef KVTWIN_ENGINE_METHODS_OUTCOME_RULES_H_
#define KVTWIN_ENGINE_METHODS_OUTCOME_RULES_H_

#include <algorithm>
#include <cstdint>

#include "engine/base/units.h"
#include "engine/methods/budget_spec.h"
#include "engine/methods/traits.h"

namespace kvtwin {

// The KV entries of a head group when `tokens` tokens are computed.
struct GroupEntries {
  uint32_t tokens = 0;
  uint32_t fixed = 0;       // forced and earlier entries, which are retained in any case
  uint32_t candidates = 0;  // the others, which are ranked
};

// The number of candidates that the group retains, given the `ranked` best of it. The released rule
// (docs/design/methods/tangram.md#released-chunks) has a floor, spec.retained_min entries with the fixed
// ones, and whole pages; no rule retains more than there are candidates.
inline uint32_t finish_count(CountedBy counted_by, const BudgetSpec& spec, uint32_t page_tokens,
                             const GroupEntries& group, uint32_t ranked) {
  if (counted_by == CountedBy::kChunkRule) {
    const uint32_t least = std::min(spec.retained_min, group.tokens);
    if (group.fixed + ranked < least) ranked = least - group.fixed;
    ranked = div_ceil(ranked, page_tokens) * page_tokens;
  }
  return std::min(ranked, group.candidates);
}

// The most chosen pages that a head can miss when its slots hold as many of the candidates as it chooses: the
// candidates outside them. REQUIRES: chosen <= candidates.
constexpr uint32_t missing_pages_max(uint32_t chosen, uint32_t candidates) {
  return std::min(chosen, candidates - chosen);
}

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_OUTCOME_RULES_H_
