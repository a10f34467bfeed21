// What a retention profile says about reserving: how much more than the mean, how often enough, how stable
// the order of heads is, and what fixed-size groups of heads cost
// (docs/design/methods/tangram.md#calibration, #clustering, #aot, #numbers).

#ifndef KVTWIN_MODELS_PROFILES_RETENTION_STATS_H_
#define KVTWIN_MODELS_PROFILES_RETENTION_STATS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "models/profiles/retention_profile.h"

namespace kvtwin {

// mean(budget) / mean(mu): what is reserved beyond what is kept.
double inflation(std::span<const double> mu, std::span<const double> budget);
// The fraction of (sample, head) whose kept fraction is within its budget. REQUIRES: samples are there.
double coverage(const RetentionProfile& profile, std::span<const double> budget);

// Spearman's correlation between the order of heads in a sample and that of their means.
enum class TieOrder : uint8_t {
  kAverage,  // equal values share their mean rank: the definition
  kByIndex,  // equal values rank in order of index, in both: what argsort gives; flatters heads that keep 0
};
struct RankStability {
  double mean = 0;    // over samples
  double lowest = 0;  // of a sample
};
RankStability rank_stability(const RetentionProfile& profile, TieOrder ties);

// Heads in the order in which groups of `group` are cut from them, by descending `key`; ties by index.
enum class GroupScope : uint8_t { kAdjacent, kPerLayer, kCrossLayer };
std::vector<uint32_t> group_order(const RetentionProfile& profile, std::span<const double> key,
                                  GroupScope scope);
// Allocated fraction of the full context when each group of consecutive heads takes its largest budget.
double allocated_fraction(std::span<const double> budget, std::span<const uint32_t> order, uint32_t group);

// Per layer: largest mean fraction / mean of them. Layers that keep nothing are left out.
std::vector<double> layer_stragglers(const RetentionProfile& profile);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_PROFILES_RETENTION_STATS_H_
