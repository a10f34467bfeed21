// Statistics of a retention profile: how much reserving costs over the mean, how often it suffices, how
// stable the order of heads is, and what head groups of fixed size cost
// (docs/design/methods/tangram.md#calibration, #clustering, #aot, #numbers).

#ifndef KVTWIN_MODELS_PROFILES_RETENTION_STATS_H_
#define KVTWIN_MODELS_PROFILES_RETENTION_STATS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "models/profiles/retention_profile.h"

namespace kvtwin {

// mean(budget) / mean(mu): reserved over retained.
double inflation(std::span<const double> mu, std::span<const double> budget);
// The fraction of (sample, head) pairs whose retained fraction is within its budget. REQUIRES: samples exist.
double coverage(const RetentionProfile& profile, std::span<const double> budget);

// Spearman's correlation between the order of heads in a sample and the order of their means.
enum class TieOrder : uint8_t {
  kAverage,  // equal values have their mean rank: the definition
  kByIndex,  // equal values rank by index, as argsort does; flatters heads that retain 0
};
struct RankStability {
  double mean = 0;    // over samples
  double lowest = 0;  // of a sample
};
RankStability rank_stability(const RetentionProfile& profile, TieOrder ties);

// The order from which groups of heads are cut: by descending `key`, ties by index.
enum class GroupScope : uint8_t { kAdjacent, kPerLayer, kCrossLayer };
std::vector<uint32_t> group_order(const RetentionProfile& profile, std::span<const double> key,
                                  GroupScope scope);
// Allocated fraction of the full context if each group of `group` consecutive heads takes its largest budget.
double allocated_fraction(std::span<const double> budget, std::span<const uint32_t> order, uint32_t group);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_PROFILES_RETENTION_STATS_H_
