#include "models/profiles/retention_stats.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvtwin {
namespace {

double sum(std::span<const double> values) { return std::accumulate(values.begin(), values.end(), 0.0); }

std::vector<double> ranks(std::span<const double> values, TieOrder ties) {
  std::vector<uint32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return values[a] < values[b]; });
  std::vector<double> out(values.size());
  for (size_t at = 0; at < order.size();) {
    size_t end = at + 1;
    while (ties == TieOrder::kAverage && end < order.size() && values[order[end]] == values[order[at]]) ++end;
    for (size_t i = at; i < end; ++i) out[order[i]] = static_cast<double>(at + end - 1) / 2;
    at = end;
  }
  return out;
}

double correlation(std::span<const double> a, std::span<const double> b) {
  const double n = static_cast<double>(a.size()), mean_a = sum(a) / n, mean_b = sum(b) / n;
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b);
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

}  // namespace

double inflation(std::span<const double> mu, std::span<const double> budget) {
  const double retained = sum(mu);
  return retained > 0 ? sum(budget) / retained : 0;
}

double coverage(const RetentionProfile& profile, std::span<const double> budget) {
  size_t within = 0;
  for (size_t i = 0; i < profile.samples.size(); ++i)
    within += profile.samples[i] <= budget[i % budget.size()];
  return static_cast<double>(within) / static_cast<double>(profile.samples.size());
}

RankStability rank_stability(const RetentionProfile& profile, TieOrder ties) {
  const std::vector<double> mean_ranks = ranks(profile.mu, ties);
  RankStability out{0, 1};
  const size_t heads = profile.heads(), samples = profile.samples.size() / heads;
  for (size_t s = 0; s < samples; ++s) {
    const auto sample = std::span(profile.samples).subspan(s * heads, heads);
    const double rho = correlation(mean_ranks, ranks(sample, ties));
    out.mean += rho / static_cast<double>(samples);
    out.lowest = std::min(out.lowest, rho);
  }
  return out;
}

std::vector<uint32_t> group_order(const RetentionProfile& profile, std::span<const double> key,
                                  GroupScope scope) {
  std::vector<uint32_t> order(profile.heads());
  std::iota(order.begin(), order.end(), 0u);
  const auto descending = [&](uint32_t a, uint32_t b) { return key[a] > key[b]; };
  if (scope == GroupScope::kCrossLayer) std::stable_sort(order.begin(), order.end(), descending);
  if (scope == GroupScope::kPerLayer) {
    for (auto at = order.begin(); at != order.end(); at += profile.kv_heads)
      std::stable_sort(at, at + profile.kv_heads, descending);
  }
  return order;
}

double allocated_fraction(std::span<const double> budget, std::span<const uint32_t> order, uint32_t group) {
  double allocated = 0;
  for (size_t at = 0; at < order.size(); at += group) {
    const auto heads = order.subspan(at, std::min<size_t>(group, order.size() - at));
    double most = 0;
    for (const uint32_t head : heads) most = std::max(most, budget[head]);
    allocated += most * static_cast<double>(heads.size());
  }
  return allocated / static_cast<double>(order.size());
}

}  // namespace kvtwin
