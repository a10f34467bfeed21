// Outcome rules end what the data decides: how many KV entries a head group retains once its heads are
// ranked, drawn or forced, which tokens are left where entries keep their slots, and how many chosen pages a
// head can miss. Engines, forced outcomes and behaviour models all end in these functions, so they count
// alike. Integers only.

#ifndef KVTWIN_ENGINE_METHODS_OUTCOME_RULES_H_
#define KVTWIN_ENGINE_METHODS_OUTCOME_RULES_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/units.h"
#include "engine/methods/budget_spec.h"
#include "engine/methods/config.h"
#include "engine/methods/traits.h"

namespace kvtwin {

// The KV entries of a head group when `tokens` tokens are computed. All its heads have equally many.
struct GroupEntries {
  uint32_t tokens = 0;
  uint32_t fixed = 0;       // forced and earlier entries, which are retained in any case
  uint32_t candidates = 0;  // the others, which are ranked
};

// CountRule is the rule of a budget whose counts the data decides.
class CountRule {
 public:
  CountRule(const PolicySet& set, uint32_t page_tokens)
      : spec_(set.budget_spec),
        counted_by_(budget_traits(set.budget).counted_by),
        page_tokens_(page_tokens) {}

  CountedBy counted_by() const { return counted_by_; }
  // The fraction of a head's `candidates` that the budget retains on average when `end` tokens are computed.
  // Sinks and window are always retained (docs/design/methods/tangram.md#released-chunks, r_adj).
  Fraction fraction(uint32_t candidates, uint32_t end) const;
  // The same as a number.
  uint32_t expected(uint32_t candidates, uint32_t end) const {
    return static_cast<uint32_t>(part_up(fraction(candidates, end), candidates));
  }

  // A head of group `group`, or several of them, retains the `count` best of its candidates.
  struct Ranked {
    uint32_t group = 0, count = 0;
  };
  // By group: the candidates that each member retains. A group is as long as its longest member; the released
  // rule (docs/design/methods/tangram.md#released-chunks) has a floor, spec.retained_min entries with the
  // fixed ones, and whole pages; no rule retains more than there are candidates.
  std::vector<uint32_t> finish(std::span<const Ranked> ranked, std::span<const GroupEntries> groups) const;

 private:
  const BudgetSpec spec_;
  const CountedBy counted_by_;
  const uint32_t page_tokens_;
};

// The candidates that a group retains if `left` entries are to remain, its fixed ones included.
constexpr uint32_t forced_keep_count(uint32_t left, const GroupEntries& group) {
  return left <= group.fixed ? 0 : std::min(left - group.fixed, group.candidates);
}

// Where a token goes from all heads at once: of the readable tokens at `positions`, those at the indices
// `rows` are retained, and drop(row) is called for each other one. Both ascend. Returns the positions that
// are left, and appends to *live one bit for each position below `end` (CompressionOutcome::live).
template <typename Drop>
std::vector<uint32_t> retain_tokens(std::span<const uint32_t> positions, std::span<const uint32_t> rows,
                                    uint32_t end, std::vector<uint64_t>* live, Drop drop) {
  const size_t first = live->size();
  live->resize(first + div_ceil(end, 64u), 0);
  std::vector<uint32_t> left;
  for (uint32_t row = 0; row < positions.size(); ++row) {
    if (left.size() == rows.size() || rows[left.size()] != row) {
      drop(row);
      continue;
    }
    left.push_back(positions[row]);
    (*live)[first + positions[row] / 64] |= uint64_t{1} << (positions[row] % 64);
  }
  return left;
}

// The most chosen pages that a head can miss when its slots hold as many of the candidates as it chooses: the
// candidates outside them. REQUIRES: chosen <= candidates.
constexpr uint32_t missing_pages_max(uint32_t chosen, uint32_t candidates) {
  return std::min(chosen, candidates - chosen);
}

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_OUTCOME_RULES_H_
