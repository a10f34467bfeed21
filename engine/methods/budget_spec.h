// How many KV entries may be kept: the numbers behind the budgets of registry.cc. Plain integers, filled by
// scenarios/ and by `calibrate policy`; all shares are Q0.32 and were rounded once, where they were made.
//
// Of n tokens, the first `sinks` and the last `window` are kept whatever happens; the n - sinks - window
// others are *ranked*, and a budget says how many of them stay (docs/design/methods/conventions.md#selection,
// docs/design/methods/tangram.md#chunks).

#ifndef KVTWIN_ENGINE_METHODS_BUDGET_SPEC_H_
#define KVTWIN_ENGINE_METHODS_BUDGET_SPEC_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/kv/head_groups.h"

namespace kvtwin {

struct BudgetSpec {
  uint32_t sinks = 4;             // first tokens of a prompt (or its template prefix)
  uint32_t window = 32;           // last tokens, kept as they are
  uint32_t chunk_tokens = 2'048;  // scorers that work at chunk ends: one chunk
  uint32_t interval = 1;          // scorers that work at decode steps: steps between two compressions

  Fraction ratio = kWhole;  // ratio, reserved by shares, and the dynamic budgets
  uint32_t kv_entries = 0;  // uniform, pyramid, ada, arena: KV entries of one head, sinks and window included
  bool sinks_free = false;  // KV entries does not count the sinks (IntentKV's budget_counts_prefix = false)
  uint32_t pyramid_beta = 20;

  // reserved: retained fraction of each head, by layer * kv_heads + head
  // (docs/design/methods/tangram.md#calibration). B = min(1, mu + alpha sigma).
  std::vector<Fraction> mu, sigma;
  Fraction alpha = 2 * kWhole;
  bool relative = false;  // mu and sigma are relative to the mean: B = min(1, ratio (mu + alpha sigma))
  std::optional<Fraction> inflation;  // largest alpha' <= alpha with sum B <= (1 + inflation) ratio heads
  uint32_t decode_reserve = 0;        // tokens of output that admission sets pages aside for

  // head_masks: heads (likewise) that keep everything; the others keep sinks and window.
  std::vector<bool> keeps_all;

  // released (docs/design/methods/tangram.md#released-chunks).
  uint32_t retained_min = 512;  // a group is never cut below this, or the tokens there are
  bool uniform_depth = false;   // tops every group up to the deepest one, as the release does
};

// KV entries of one head that `kv_entries` counts and no ranking decides about: at most 2^25 in a validated
// spec.
constexpr uint32_t forced_kv_entries(const BudgetSpec& spec) {
  return spec.window + (spec.sinks_free ? 0 : spec.sinks);
}
// What is left of `kv_entries` for those that are ranked.
constexpr uint32_t ranked_entries(const BudgetSpec& spec) {
  return spec.kv_entries > forced_kv_entries(spec) ? spec.kv_entries - forced_kv_entries(spec) : 0;
}

// B of each head (docs/design/methods/tangram.md#calibration): both calibrations, clipped to kWhole,
// renormalised if `inflation` is set. REQUIRES: mu and sigma have equal size.
std::vector<Fraction> reserved_fractions(const BudgetSpec& spec);

// share * count, rounded up | down. REQUIRES: share <= kWhole.
constexpr uint32_t part_up(Fraction fraction, uint32_t count) {
  return static_cast<uint32_t>((fraction * count + (kWhole - 1)) >> 32);
}
constexpr uint32_t part_down(Fraction fraction, uint32_t count) {
  return static_cast<uint32_t>((fraction * count) >> 32);
}

// A sentence that says what is wrong with the numbers that the budget named `budget` reads.
std::optional<std::string> validate_budget_spec(const std::string& budget, const BudgetSpec& spec,
                                                const LayoutSpec& layout);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_BUDGET_SPEC_H_
