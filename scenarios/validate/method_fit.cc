#include "scenarios/validate/method_fit.h"

#include <algorithm>
#include <cmath>

namespace kvtwin {
namespace {

constexpr int kRounds = 12;
constexpr double kSmallError = 0.003;  // relative; steps with a smaller error get no more weight
constexpr double kRidge = 1e-6;        // terms that always occur together get equal prices
// Fraction of a step. The time between attention and the next layer's recall is longer.
constexpr double kConcurrent = 0.4;
constexpr double kHeldUp = 1.1;  // a step this much longer than its sum waited for copies

using Vector = std::vector<double>;

size_t index(MethodTerm term) { return static_cast<size_t>(term); }

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

// Weighted least squares over `terms`.
Vector least_squares(const std::vector<MethodSample>& samples, const Vector& weights,
                     const std::vector<size_t>& terms) {
  const size_t n = terms.size();
  std::vector<Vector> a(n, Vector(n));
  Vector b(n);
  for (size_t s = 0; s < samples.size(); ++s) {
    const MethodSample& one = samples[s];
    for (size_t i = 0; i < n; ++i) {
      const double x = weights[s] * one.counts[terms[i]];
      b[i] += x * (one.measured - one.dense);
      for (size_t j = 0; j < n; ++j) a[i][j] += x * one.counts[terms[j]];
    }
  }
  for (size_t i = 0; i < n; ++i) a[i][i] *= 1 + kRidge;
  return solve(&a, b);
}

// Removes terms with negative prices, the most negative first, until none is left.
MethodCounts no_price_below_zero(const std::vector<MethodSample>& samples, const Vector& weights,
                                 std::vector<size_t> terms) {
  MethodCounts out{};
  while (!terms.empty()) {
    const Vector found = least_squares(samples, weights, terms);
    const auto worst = std::min_element(found.begin(), found.end());
    if (*worst >= 0) {
      for (size_t i = 0; i < terms.size(); ++i) out[terms[i]] = found[i];
      return out;
    }
    terms.erase(terms.begin() + (worst - found.begin()));
  }
  return out;
}

bool recorded(const MethodSample& one) { return one.counts[index(MethodTerm::kRecorded)] > 0; }

double predicted(const MethodSample& one, const MethodCounts& prices) {
  const double sum = one.dense + method_sum(one.counts, prices);
  return recorded(one) ? std::max(sum, prices[index(MethodTerm::kRecorded)]) : sum;
}

// The part of a step concurrently with which pages recalled after attention are copied: everything but
// attention and other recalls. The step waits for the remainder (graph_pricer.h has the exact rule).
double concurrent(const MethodSample& one, MethodCounts prices) {
  for (const MethodTerm pages : {MethodTerm::kLoading, MethodTerm::kRecallingHead, MethodTerm::kRecallingNext,
                                 MethodTerm::kPageNow, MethodTerm::kPageMixed, MethodTerm::kPageConcurrent,
                                 MethodTerm::kPageLaunched, MethodTerm::kPageNext})
    prices[index(pages)] = 0;
  return predicted(one, prices) - one.attention;
}

double predicted_concurrent(const MethodSample& one, MethodCounts prices) {
  const double recalls = one.counts[index(MethodTerm::kPageNext)] * prices[index(MethodTerm::kPageNext)];
  prices[index(MethodTerm::kPageNext)] = 0;
  return predicted(one, prices) + std::max(0.0, recalls - concurrent(one, prices));
}

MethodCounts sums(std::vector<MethodSample> samples, const MethodCounts& known) {
  std::vector<size_t> terms;
  for (size_t i = 0; i < kMethodTerms; ++i) {
    if (known[i] < 0) {
      if (i != index(MethodTerm::kPageNext) && i != index(MethodTerm::kRecorded)) terms.push_back(i);
      continue;
    }
    for (MethodSample& one : samples) one.dense += known[i] * one.counts[i];
  }
  Vector weights;
  for (const MethodSample& one : samples) weights.push_back(1 / (one.measured * one.measured));
  MethodCounts out{};
  for (int round = 0; round < kRounds; ++round) {
    out = no_price_below_zero(samples, weights, terms);
    for (size_t s = 0; s < samples.size(); ++s) {
      const MethodSample& one = samples[s];
      const double error = std::abs(predicted(one, out) / one.measured - 1);
      weights[s] = 1 / (one.measured * one.measured * std::max(kSmallError, error));
    }
  }
  for (size_t i = 0; i < kMethodTerms; ++i) out[i] = known[i] >= 0 ? known[i] : out[i];
  return out;
}

// The price of a page recalled after attention: among the candidates from steps that waited, the one with the
// least error over all steps with such pages.
double page_behind(const std::vector<MethodSample>& samples, MethodCounts prices) {
  double& price = prices[index(MethodTerm::kPageNext)];
  price = 0;
  std::vector<const MethodSample*> with;
  std::vector<double> tried;
  for (const MethodSample& one : samples) {
    const double pages = one.counts[index(MethodTerm::kPageNext)], sum = predicted(one, prices);
    if (pages <= 0 || one.counts[index(MethodTerm::kChunkStep)] > 0) continue;
    with.push_back(&one);
    if (one.measured > kHeldUp * sum) tried.push_back((one.measured - sum + concurrent(one, prices)) / pages);
  }
  double best = 0, least = 0;
  for (size_t i = 0; i < tried.size(); ++i) {
    price = tried[i];
    double error = 0;
    for (const MethodSample* one : with)
      error += std::abs(predicted_concurrent(*one, prices) / one->measured - 1);
    if (i == 0 || error < least) best = price, least = error;
  }
  return best;
}

// The samples that do not wait, and so determine the other prices. A step is taken to wait for pages recalled
// after attention if they are copied for too large a part of it, or, while the price `page` is unknown (0),
// if they are more than half of `most`. Steps whose graph the host records wait for the host.
std::vector<MethodSample> without_waits(const std::vector<MethodSample>& samples, double page, double most) {
  std::vector<MethodSample> out;
  for (const MethodSample& one : samples) {
    const double pages = one.counts[index(MethodTerm::kPageNext)];
    const bool waits = page > 0 ? pages * page > kConcurrent * one.measured : pages * 2 > most;
    if (!waits && !recorded(one)) out.push_back(one);
  }
  return out;
}

// The minimum time of a step whose graph the host records: among the measured times of such steps, the one
// with the least error over all of them.
double recording(const std::vector<MethodSample>& samples, MethodCounts prices) {
  double best = 0, least = 0;
  std::vector<const MethodSample*> with;
  for (const MethodSample& one : samples) {
    if (recorded(one)) with.push_back(&one);
  }
  double& floor = prices[index(MethodTerm::kRecorded)];
  for (size_t tried = 0; tried <= with.size(); ++tried) {
    floor = tried == 0 ? 0 : with[tried - 1]->measured;
    double error = 0;
    for (const MethodSample* one : with) error += std::abs(predicted(*one, prices) / one->measured - 1);
    if (tried == 0 || error < least) best = floor, least = error;
  }
  return best;
}

}  // namespace

MethodCounts learn_all() {
  MethodCounts out{};
  out.fill(-1);
  return out;
}

double choosing_error(const std::vector<MethodSample>& samples, const MeasuredMethod& method) {
  const MethodCounts prices = prices_of(method);
  double sum = 0, count = 0;
  for (size_t s = 0; s < samples.size(); ++s) {
    if (s % kHeldOut == 0 || samples[s].counts[index(MethodTerm::kChoosing)] == 0) continue;
    sum += std::abs(predicted_concurrent(samples[s], prices) / samples[s].measured - 1), ++count;
  }
  return count > 0 ? sum / count : 0;
}

MeasuredMethod fit_method(const std::string& name, const std::string& model,
                          const std::vector<MethodSample>& samples, const MethodCounts& known) {
  std::vector<MethodSample> learnt;
  double most = 0;
  for (const MethodSample& one : samples) most = std::max(most, one.counts[index(MethodTerm::kPageNext)]);
  for (size_t s = 0; s < samples.size(); ++s) {
    if (s % kHeldOut != 0) learnt.push_back(samples[s]);
  }
  // Each fit improves the price of a page, which the next fit uses.
  MethodCounts prices = sums(without_waits(learnt, 0, most), known);
  prices = sums(without_waits(learnt, prices[index(MethodTerm::kPageNow)], most), known);
  if (most > 0) {
    double& next = prices[index(MethodTerm::kPageNext)];
    next = page_behind(learnt, prices);
    if (next == 0)
      next = prices[index(MethodTerm::kPageNow)];  // no step waited: assume the price of other pages
  }
  prices[index(MethodTerm::kRecorded)] = recording(learnt, prices);
  MeasuredMethod out{name, model, {}, static_cast<uint32_t>(learnt.size()), 0, 0};
  for (size_t i = 0; i < kMethodTerms; ++i) {
    if (prices[i] > 0) out.terms.push_back({name_of(static_cast<MethodTerm>(i)), prices[i]});
  }
  std::vector<double> errors;
  for (size_t s = 0; s < samples.size(); s += kHeldOut)
    errors.push_back(std::abs(predicted_concurrent(samples[s], prices) / samples[s].measured - 1));
  if (errors.empty()) return out;
  const Measured spread = measured_of(errors);
  out.error_median = spread.us, out.error_p90 = spread.p90;
  return out;
}

}  // namespace kvtwin
