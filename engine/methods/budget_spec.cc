#include "engine/methods/budget_spec.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/methods/traits.h"

namespace kvtwin {
namespace {

using Wide = unsigned __int128;

// mu + alpha * sigma, times ratio if relative; clipped to kWhole.
Fraction head_fraction(const BudgetSpec& spec, size_t head, Fraction alpha) {
  Wide fraction = Wide{spec.mu[head]} + ((Wide{alpha} * spec.sigma[head]) >> 32);
  if (spec.relative) fraction = (fraction * spec.ratio) >> 32;
  return static_cast<Fraction>(std::min<Wide>(fraction, kWhole));
}

Wide sum_of_fractions(const BudgetSpec& spec, Fraction alpha) {
  Wide sum = 0;
  for (size_t head = 0; head < spec.mu.size(); ++head) sum += head_fraction(spec, head, alpha);
  return sum;
}

}  // namespace

std::vector<Fraction> reserved_fractions(const BudgetSpec& spec) {
  KVT_CHECK(spec.mu.size() == spec.sigma.size());
  Fraction alpha = spec.alpha;
  if (spec.inflation.has_value()) {
    const Wide limit = ((Wide{kWhole} + *spec.inflation) * spec.ratio >> 32) * spec.mu.size();
    // The sum increases with alpha: binary search for the largest alpha that fits; 0 if none does.
    Fraction low = 0, high = spec.alpha;
    while (low < high) {
      const Fraction middle = low + (high - low + 1) / 2;
      if (sum_of_fractions(spec, middle) <= limit) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    alpha = low;
  }
  std::vector<Fraction> out(spec.mu.size());
  for (size_t head = 0; head < out.size(); ++head) out[head] = head_fraction(spec, head, alpha);
  return out;
}

std::optional<std::string> validate_budget_spec(const std::string& budget, const BudgetSpec& spec,
                                                const LayoutSpec& layout) {
  const auto number = [](uint64_t value) { return std::to_string(value); };
  const std::string heads = number(layout.heads());
  const BudgetTraits traits = budget_traits(budget);
  if (traits.keeps_all) return std::nullopt;
  // The limit prevents overflow of their sums.
  constexpr uint32_t kTokensMax = 1u << 24;
  for (const uint32_t value : {spec.sinks, spec.window, spec.interval, spec.kv_entries, spec.chunk_tokens}) {
    if (value > kTokensMax)
      return "a number of budget " + budget + " is " + number(value) + "; 16,777,216 is the most";
  }
  if (spec.pyramid_beta > 4'096) return "the beta of budget " + budget + " is above 4096";
  if (spec.ratio > kWhole) return "the ratio of budget " + budget + " is above 1";
  if (spec.interval == 0) return "the interval of budget " + budget + " is 0 decode steps; 1 is the least";
  if (spec.chunk_tokens == 0) return "the chunk of budget " + budget + " has 0 tokens; 1 is the least";
  const uint32_t forced = forced_kv_entries(spec);
  if (traits.entries && spec.kv_entries < std::max(forced, 1u)) {
    return "budget " + budget + " keeps " + number(spec.kv_entries) +
           " KV entries, but sinks and window alone are " + number(forced) +
           "; raise KV entries, or shrink them";
  }
  if (traits.table == HeadTable::kCalibrated) {
    if (spec.mu.size() != layout.heads() || spec.sigma.size() != layout.heads()) {
      return "budget reserved has retained fractions of " + number(spec.mu.size()) +
             " heads and standard deviations of " + number(spec.sigma.size()) + ", but the layout has " +
             heads + " heads";
    }
    if (spec.alpha > (kWhole << 12)) return "the alpha of budget reserved is above 4096";
    for (const std::vector<Fraction>* table : {&spec.mu, &spec.sigma}) {
      const bool wild = std::any_of(table->begin(), table->end(),
                                    [](Fraction fraction) { return fraction > (kWhole << 12); });
      if (wild) return "a retained fraction of budget reserved is above 4096; a fraction is at most 1";
    }
  }
  if (traits.table == HeadTable::kMasks && spec.keeps_all.size() != layout.heads()) {
    return "budget head_masks has entries for " + number(spec.keeps_all.size()) +
           " heads, but the layout has " + heads + " heads";
  }
  if (traits.table == HeadTable::kLayers && spec.pyramid_beta == 0)
    return "the beta of budget pyramid is 0; 20 is usual";
  return std::nullopt;
}

}  // namespace kvtwin
