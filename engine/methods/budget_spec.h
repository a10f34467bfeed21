// BudgetSpec defines how many KV entries may be retained: the parameters of the budgets in registry.cc. They
// are plain integers, filled by scenarios/ and by `calibrate policy`. All fractions are Q0.32 and were
// rounded once, where they were computed.
//
// Of n tokens, the first `sinks` and the last `window` are always retained. The n - sinks - window others are
// *ranked*, and a budget defines how many of them are retained (docs/design/methods/conventions.md#selection,
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
  uint32_t sinks = 4;             // first tokens of a prompt, always retained
  uint32_t window = 32;           // last tokens, always retained; for prompts with PromptSpans, these instead
  uint32_t chunk_tokens = 2'048;  // scorers that work at chunk ends: size of a chunk
  uint32_t interval = 1;          // scorers that work at decode steps: steps between two compressions

  Fraction ratio = kWhole;  // ratio, reserved with relative fractions, and the dynamic budgets
  uint32_t kv_entries = 0;  // uniform, pyramid, ada, ring: KV entries of one head, sinks and window included
  bool sinks_free = false;  // `kv_entries` excludes the sinks (IntentKV's budget_counts_prefix = false)
  uint32_t pyramid_beta = 20;

  // reserved: retained fraction of each head, by layer * kv_heads + head
  // (docs/design/methods/tangram.md#calibration). B = min(1, mu + alpha sigma).
  std::vector<Fraction> mu, sigma;
  Fraction alpha = 2 * kWhole;
  bool relative = false;  // mu and sigma are relative to the mean: B = min(1, ratio (mu + alpha sigma))
  std::optional<Fraction> inflation;  // largest alpha' <= alpha with sum B <= (1 + inflation) ratio heads
  uint32_t decode_reserve = 0;        // output tokens for which admission reserves pages

  // head_masks: heads, in the same order, that retain everything; the others retain sinks and window.
  std::vector<bool> keeps_all;

  // released (docs/design/methods/tangram.md#released-chunks).
  uint32_t retained_min = 512;  // a group never retains fewer KV entries, unless it has fewer
  bool uniform_depth = false;   // pads every group to the depth of the deepest, as the release does
};

// KV entries of one head that are included in `kv_entries` and are not ranked: at most 2^25 in a validated
// spec.
constexpr uint32_t forced_kv_entries(const BudgetSpec& spec) {
  return spec.window + (spec.sinks_free ? 0 : spec.sinks);
}
// The part of `kv_entries` that remains for ranked KV entries.
constexpr uint32_t ranked_entries(const BudgetSpec& spec) {
  return spec.kv_entries > forced_kv_entries(spec) ? spec.kv_entries - forced_kv_entries(spec) : 0;
}

// B of each head (docs/design/methods/tangram.md#calibration), for either calibration, clipped to kWhole, and
// renormalised if `inflation` is set. REQUIRES: mu and sigma have equal size.
std::vector<Fraction> reserved_fractions(const BudgetSpec& spec);

// fraction * count, rounded up or down. REQUIRES: fraction <= kWhole.
constexpr uint64_t part_up(Fraction fraction, uint64_t count) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(fraction) * count + (kWhole - 1)) >> 32);
}
constexpr uint32_t part_down(Fraction fraction, uint32_t count) {
  return static_cast<uint32_t>((fraction * count) >> 32);
}

// Returns one sentence that describes the error in the parameters of budget `budget`; nullopt: valid.
std::optional<std::string> validate_budget_spec(const std::string& budget, const BudgetSpec& spec,
                                                const LayoutSpec& layout);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_BUDGET_SPEC_H_
