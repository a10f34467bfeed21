// Small exact containers for metrics: a weighted histogram of durations and a bounded time series.

#ifndef KVTWIN_ENGINE_METRICS_METRICS_SERIES_H_
#define KVTWIN_ENGINE_METRICS_METRICS_SERIES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/units.h"

namespace kvtwin {

// A count times nanoseconds: 10^7 tokens over a week overflow 64 bits.
__extension__ using Integral = unsigned __int128;

// Weighted histogram of durations whose buckets are at most 1/1024 of their value wide. Count, sum and
// maximum are exact; quantiles are those of the bucket's middle, so within 0.05 %.
class LogHistogram {
 public:
  // REQUIRES: value.ns >= 0.
  void add(Duration value, uint64_t weight) {
    if (weight == 0) return;
    const auto ns = static_cast<uint64_t>(value.ns);
    const size_t index = bucket(ns);
    if (index >= weights_.size()) weights_.resize(index + 1);
    weights_[index] += weight;
    count_ += weight;
    sum_ += Integral{ns} * weight;
    max_ = ns > max_ ? ns : max_;
  }

  uint64_t count() const { return count_; }
  Duration max() const { return {static_cast<int64_t>(max_)}; }
  double mean_ns() const { return count_ == 0 ? 0 : static_cast<double>(sum_) / static_cast<double>(count_); }
  // The smallest value that at least `percent` of the weight does not exceed. 0 when empty.
  double quantile_ns(uint32_t percent) const;

 private:
  static constexpr int kBits = 10;
  static size_t bucket(uint64_t ns) {
    if (ns < (2u << kBits)) return ns;
    const int shift = 63 - __builtin_clzll(ns) - kBits;
    return (static_cast<size_t>(shift) << kBits) + (ns >> shift);
  }
  static double middle_ns(size_t index);

  std::vector<uint64_t> weights_;
  uint64_t count_ = 0;
  uint64_t max_ = 0;
  Integral sum_ = 0;
};

// A quantity over time in at most kBuckets equal buckets from instant 0. A run that outgrows them
// doubles the width, so that memory stays fixed and every value stays an exact integral.
class Series {
 public:
  static constexpr size_t kBuckets = 512;

  // The quantity was `value` in [from, to).
  void add(Instant from, Instant to, uint64_t value);
  // `integral` of it came evenly over [from, to); where that is one instant, then.
  void spread(Instant from, Instant to, uint64_t integral);

  Duration width() const { return width_; }
  const std::vector<Integral>& integrals() const { return sums_; }  // value times ns, per bucket

 private:
  void widen(Instant to);  // until it is inside

  Duration width_{1'000'000};
  std::vector<Integral> sums_;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METRICS_METRICS_SERIES_H_
