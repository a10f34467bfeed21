#include "scenarios/validate/operation_fit.h"

#include <algorithm>
#include <cmath>

namespace kvtwin {
namespace {

constexpr int kRounds = 12;
constexpr double kSmallError = 0.003;  // relative; steps with a smaller error get no more weight
constexpr double kRidge = 1e-6;        // families that always occur together get equal prices
// Fraction of a step. The time between attention and the next layer's recall is longer.
constexpr double kConcurrent = 0.4;
constexpr double kHeldUp = 1.1;  // a step this much longer than its sum waited for copies

using Vector = std::vector<double>;

size_t index(Family family) { return static_cast<size_t>(family); }

// Solves a symmetric system in place. Rows without information give 0. This is not LAPACK, because
// `ctest -R calibrate_recorded` compares the file of prices byte by byte: LAPACK chooses kernels by processor
// and sums in their order, this code rounds the same everywhere (-ffp-contract=off).
Vector solve(std::vector<Vector>* a, Vector b) {
  const size_t n = b.size();
  for (size_t i = 0; i < n; ++i) {
    size_t best = i;
    for (size_t r = i + 1; r < n; ++r) best = std::abs((*a)[r][i]) > std::abs((*a)[best][i]) ? r : best;
    std::swap((*a)[i], (*a)[best]), std::swap(b[i], b[best]);
    if (std::abs((*a)[i][i]) < 1e-300) continue;
    for (size_t r = 0; r < n; ++r) {
      if (r == i) continue;
      const double factor = (*a)[r][i] / (*a)[i][i];
      for (size_t c = i; c < n; ++c) (*a)[r][c] -= factor * (*a)[i][c];
      b[r] -= factor * b[i];
    }
  }
  for (size_t i = 0; i < n; ++i) b[i] = std::abs((*a)[i][i]) < 1e-300 ? 0 : b[i] / (*a)[i][i];
  return b;
}

// Weighted least squares: the normal equations of all families, of which a fit uses some.
class NormalEquations {
 public:
  NormalEquations(const std::vector<OperationSample>& samples, const Vector& weights,
                  const FamilyCounts& scale)
      : a_(kOperationFamilies, Vector(kOperationFamilies)), b_(kOperationFamilies) {
    for (size_t s = 0; s < samples.size(); ++s) {
      const OperationSample& one = samples[s];
      FamilyCounts x{};
      for (size_t i = 0; i < kOperationFamilies; ++i) x[i] = one.counts[i] / scale[i];
      for (size_t i = 0; i < kOperationFamilies; ++i) {
        if (x[i] == 0) continue;
        b_[i] += weights[s] * x[i] * (one.measured - one.dense);
        for (size_t j = 0; j < kOperationFamilies; ++j) a_[i][j] += weights[s] * x[i] * x[j];
      }
    }
  }

  Vector of(const std::vector<size_t>& families) const {
    const size_t n = families.size();
    std::vector<Vector> a(n, Vector(n));
    Vector b(n);
    for (size_t i = 0; i < n; ++i) {
      b[i] = b_[families[i]];
      for (size_t j = 0; j < n; ++j) a[i][j] = a_[families[i]][families[j]];
      a[i][i] *= 1 + kRidge;
    }
    return solve(&a, b);
  }

 private:
  std::vector<Vector> a_;
  Vector b_;
};

// Removes families with negative prices, the most negative first, until none is left. In us per scaled unit.
FamilyCounts no_price_below_zero(const NormalEquations& normal, std::vector<size_t> families) {
  FamilyCounts out{};
  while (!families.empty()) {
    const Vector found = normal.of(families);
    const auto worst = std::min_element(found.begin(), found.end());
    if (*worst >= 0) {
      for (size_t i = 0; i < families.size(); ++i) out[families[i]] = found[i];
      return out;
    }
    families.erase(families.begin() + (worst - found.begin()));
  }
  return out;
}

double predicted(const OperationSample& one, FamilyCounts ns) {
  ns[index(Family::kPageNext)] = 0;
  return one.dense + family_us(one.counts, ns);
}

// The part of a step concurrently with which pages recalled after attention are copied: everything but
// attention and other recalls. The step waits for the remainder (graph_pricer.h has the exact rule).
double concurrent(const OperationSample& one, FamilyCounts ns) {
  for (const Family pages : {Family::kPageNow, Family::kPageConcurrent, Family::kPageLaunched})
    ns[index(pages)] = 0;
  return predicted(one, ns) - one.attention;
}

double pages_next(const OperationSample& one) { return one.counts[index(Family::kPageNext)]; }

// All prices but kPageNext, in ns.
FamilyCounts sums(const std::vector<OperationSample>& samples) {
  FamilyCounts scale{};
  for (const OperationSample& one : samples) {
    for (size_t i = 0; i < kOperationFamilies; ++i) scale[i] = std::max(scale[i], one.counts[i]);
  }
  std::vector<size_t> families;
  for (size_t i = 0; i < kOperationFamilies; ++i) {
    if (scale[i] > 0 && i != index(Family::kPageNext)) families.push_back(i);
    if (scale[i] == 0) scale[i] = 1;
  }
  Vector weights;
  for (const OperationSample& one : samples) weights.push_back(1 / (one.measured * one.measured));
  FamilyCounts out{};
  for (int round = 0; round < kRounds; ++round) {
    out = no_price_below_zero(NormalEquations(samples, weights, scale), families);
    for (size_t i = 0; i < kOperationFamilies; ++i) out[i] *= 1e3 / scale[i];
    for (size_t s = 0; s < samples.size(); ++s) {
      const OperationSample& one = samples[s];
      const double error = std::abs(predicted(one, out) / one.measured - 1);
      weights[s] = 1 / (one.measured * one.measured * std::max(kSmallError, error));
    }
  }
  return out;
}

// The price of a page recalled after attention: among that of other pages and the candidates from steps that
// waited, the one with the least error over all steps with such pages.
double page_behind(const std::vector<OperationSample>& samples, FamilyCounts ns) {
  std::vector<const OperationSample*> with;
  Vector tried{ns[index(Family::kPageNow)]};
  for (const OperationSample& one : samples) {
    const double sum = predicted(one, ns);
    if (pages_next(one) <= 0) continue;
    with.push_back(&one);
    if (one.measured > kHeldUp * sum)
      tried.push_back(1e3 * (one.measured - sum + concurrent(one, ns)) / pages_next(one));
  }
  double best = 0, least = 0;
  for (size_t i = 0; i < tried.size(); ++i) {
    ns[index(Family::kPageNext)] = tried[i];
    double error = 0;
    for (const OperationSample* one : with) error += std::abs(predicted_us(*one, ns) / one->measured - 1);
    if (i == 0 || error < least) best = tried[i], least = error;
  }
  return best;
}

// The samples that do not wait, and so determine the other prices. A step is taken to wait for pages recalled
// after attention if they are copied for too large a part of it, or, while the price `ns` of a page is
// unknown (0), if they are more than half of `most`.
std::vector<OperationSample> without_waits(const std::vector<OperationSample>& samples, double ns,
                                           double most) {
  std::vector<OperationSample> out;
  for (const OperationSample& one : samples) {
    const double pages = pages_next(one);
    const bool waits = ns > 0 ? pages * ns / 1e3 > kConcurrent * one.measured : pages > 0 && pages * 2 > most;
    if (!waits && !one.makes_graph) out.push_back(one);
  }
  return out;
}

}  // namespace

double predicted_us(const OperationSample& sample, const FamilyCounts& ns) {
  const double recalls = pages_next(sample) * ns[index(Family::kPageNext)] / 1e3;
  return predicted(sample, ns) + std::max(0.0, recalls - concurrent(sample, ns));
}

MeasuredOperations fit_operations(const std::vector<OperationSample>& samples) {
  std::vector<OperationSample> learnt;
  double most = 0;
  for (const OperationSample& one : samples) most = std::max(most, pages_next(one));
  for (size_t s = 0; s < samples.size(); ++s) {
    if (s % kHeldOut != 0) learnt.push_back(samples[s]);
  }
  // Each fit improves the price of a page, which the next fit uses.
  FamilyCounts ns = sums(without_waits(learnt, 0, most));
  ns = sums(without_waits(learnt, ns[index(Family::kPageNow)], most));
  if (most > 0) ns[index(Family::kPageNext)] = page_behind(learnt, ns);
  MeasuredOperations out{{}, static_cast<uint32_t>(learnt.size()), 0, 0};
  for (size_t i = 0; i < kOperationFamilies; ++i) {
    if (ns[i] > 0) out.prices.push_back({name_of(static_cast<Family>(i)), ns[i]});
  }
  Vector errors;
  for (size_t s = 0; s < samples.size(); s += kHeldOut)
    errors.push_back(std::abs(predicted_us(samples[s], ns) / samples[s].measured - 1));
  if (errors.empty()) return out;
  const Measured spread = measured_of(errors);
  out.error_median = spread.us, out.error_p90 = spread.p90;
  return out;
}

}  // namespace kvtwin
