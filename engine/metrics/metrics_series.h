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

// Weighted histogram of durations. A bucket is at most 1/1024 of its value wide. Count, sum and maximum are
// exact; a quantile is the middle of its bucket, so its error is at most 0.05 %.
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
  // The smallest value such that at least `percent` of the weight does not exceed it. 0 if empty.
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

// A quantity over time in at most kBuckets equal buckets from instant 0. When a run exceeds them, the bucket
// width doubles, so that memory is bounded and every bucket remains an exact integral.
class Series {
 public:
  static constexpr size_t kBuckets = 512;

  // The quantity was `value` in [from, to).
  void add(Instant from, Instant to, uint64_t value);
  // Distributes `integral` evenly over [from, to); if from == to, adds it at that instant.
  void spread(Instant from, Instant to, uint64_t integral);

  Duration width() const { return width_; }
  const std::vector<Integral>& integrals() const { return sums_; }  // value times ns, per bucket

 private:
  void widen(Instant to);  // until `to` is inside

  Duration width_{1'000'000};
  std::vector<Integral> sums_;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METRICS_METRICS_SERIES_H_
