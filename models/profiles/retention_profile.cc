#include "models/profiles/retention_profile.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvtwin {
namespace {

double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The largest x in [low, high] that `good` accepts. REQUIRES: good(low), and good is true below some x.
template <typename Good>
double bisect(double low, double high, Good good) {
  if (good(high)) return high;
  for (int i = 0; i < 200 && low < high; ++i) {
    const double middle = low + (high - low) / 2;
    if (middle == low || middle == high) break;
    (good(middle) ? low : high) = middle;
  }
  return low;
}

double moved(double r, double t) { return t * r / (1 - r + t * r); }

}  // namespace

std::vector<double> budgets(std::span<const double> mu, std::span<const double> sigma, double alpha) {
  std::vector<double> out(mu.size());
  for (size_t i = 0; i < mu.size(); ++i) out[i] = std::min(1.0, mu[i] + alpha * sigma[i]);
  return out;
}

std::vector<double> fraction_budgets(const RetentionProfile& profile, double ratio, double alpha) {
  std::vector<double> out(profile.fraction_mu.size());
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = std::min(1.0, ratio * (profile.fraction_mu[i] + alpha * profile.fraction_sigma[i]));
  }
  return out;
}

double renormalised_alpha(std::span<const double> mu, std::span<const double> sigma, double alpha,
                          double epsilon) {
  const double limit = (1 + epsilon) * std::accumulate(mu.begin(), mu.end(), 0.0);
  return bisect(0, alpha, [&](double a) {
    const std::vector<double> sized = budgets(mu, sigma, a);
    return std::accumulate(sized.begin(), sized.end(), 0.0) <= limit;
  });
}

double adjusted_ratio(double ratio, uint64_t tokens, uint64_t window) {
  if (ratio >= 1 || tokens <= window) return 1;
  const double n = static_cast<double>(tokens), w = static_cast<double>(window);
  return ratio * n < w ? 0 : std::clamp((ratio * n - w) / (n - w), 0.0, 1.0);
}

double profile_mean(double ratio, uint64_t context, uint64_t window, uint64_t sinks) {
  if (context == 0) return 1;
  const double n = static_cast<double>(context), s = static_cast<double>(sinks);
  return std::clamp((ratio * (n + s) - static_cast<double>(window) - s) / n, 0.0, 1.0);
}

Ratios scaled_to_mean(std::span<const double> mu, std::span<const double> sigma, double target) {
  Ratios out{{mu.begin(), mu.end()}, {sigma.begin(), sigma.end()}};
  if (target == mean(mu)) return out;
  if (target <= 0 || target >= 1) {
    std::fill(out.mu.begin(), out.mu.end(), target <= 0 ? 0.0 : 1.0);
    std::fill(out.sigma.begin(), out.sigma.end(), 0.0);
    return out;
  }
  for (double& r : out.mu) r = std::clamp(r, kRatioEdge, 1 - kRatioEdge);
  // Bisect in log t, because the odds have no scale of their own.
  const double log_t = bisect(-60, 60, [&](double x) {
    const double t = std::exp(x);
    double sum = 0;
    for (const double r : out.mu) sum += moved(r, t);
    return sum <= target * static_cast<double>(out.mu.size());
  });
  const double t = std::exp(log_t);
  for (size_t i = 0; i < out.mu.size(); ++i) {
    const double r = out.mu[i], below = 1 - r + t * r;
    out.mu[i] = moved(r, t);
    out.sigma[i] = std::min(sigma[i] * t / (below * below), std::sqrt(out.mu[i] * (1 - out.mu[i])));
  }
  return out;
}

std::vector<uint64_t> to_q32(std::span<const double> fractions) {
  std::vector<uint64_t> out;
  out.reserve(fractions.size());
  for (const double x : fractions)
    out.push_back(static_cast<uint64_t>(std::llround(std::clamp(x, 0.0, 1.0) * 0x1p32)));
  return out;
}

}  // namespace kvtwin
