#include "engine/methods/outcome_rules.h"

#include "engine/methods/chunk_rule.h"

namespace kvtwin {

Fraction CountRule::fraction(uint32_t candidates, uint32_t end) const {
  if (counted_by_ != CountedBy::kLayerShares)
    return adjusted_ratio(spec_.ratio, end, spec_.sinks, spec_.window);
  const uint64_t room = ranked_entries(spec_);
  return room >= candidates ? kWhole : (room << 32) / candidates;
}

std::vector<uint32_t> CountRule::finish(std::span<const Ranked> ranked,
                                        std::span<const GroupEntries> groups) const {
  std::vector<uint32_t> out(groups.size(), 0);
  for (const Ranked& one : ranked) out[one.group] = std::max(out[one.group], one.count);
  for (size_t g = 0; g < groups.size(); ++g) {
    const GroupEntries& group = groups[g];
    if (counted_by_ == CountedBy::kChunkRule) {
      const uint32_t least = std::min(spec_.retained_min, group.tokens);
      if (group.fixed + out[g] < least) out[g] = least - group.fixed;
      out[g] = div_ceil(out[g], page_tokens_) * page_tokens_;
    }
    out[g] = std::min(out[g], group.candidates);
  }
  return out;
}

}  // namespace kvtwin
