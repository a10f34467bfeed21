#include "models/profiles/retention_profile.h"

#include <algorithm>
#include <cmath>

namespace kvtwin {
std::vector<double> budgets(std::span<const double> mu, std::span<const double> sigma, double alpha) {
  std::vector<double> out(mu.size());
  for (size_t i = 0; i < mu.size(); ++i) out[i] = std::min(1.0, mu[i] + alpha * sigma[i]);
  return out;
}

double adjusted_ratio(double ratio, uint64_t tokens, uint64_t window) {
  if (ratio >= 1 || tokens <= window) return 1;
  const double n = static_cast<double>(tokens), w = static_cast<double>(window);
  return ratio * n < w ? 0 : std::clamp((ratio * n - w) / (n - w), 0.0, 1.0);
}

std::vector<uint64_t> to_q32(std::span<const double> fractions) {
  std::vector<uint64_t> out;
  out.reserve(fractions.size());
  for (const double x : fractions)
    out.push_back(static_cast<uint64_t>(std::llround(std::clamp(x, 0.0, 1.0) * 0x1p32)));
  return out;
}

}  // namespace kvtwin
