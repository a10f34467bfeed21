#include "engine/metrics/metrics_series.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin {

double LogHistogram::middle_ns(size_t index) {
  if (index < (2u << kBits)) return static_cast<double>(index);
  const size_t shift = (index >> kBits) - 1;
  const uint64_t low = ((index & ((1u << kBits) - 1)) + (1u << kBits)) << shift;
  return static_cast<double>(low) + static_cast<double>((uint64_t{1} << shift) - 1) / 2;
}

double LogHistogram::quantile_ns(uint32_t percent) const {
  if (count_ == 0) return 0;
  const uint64_t rank = std::max<uint64_t>(1, div_ceil<uint64_t>(count_ * percent, 100));
  uint64_t seen = 0;
  for (size_t index = 0; index < weights_.size(); ++index) {
    seen += weights_[index];
    if (seen >= rank) return std::min(middle_ns(index), static_cast<double>(max_));
  }
  return static_cast<double>(max_);
}

void Series::add(Instant from, Instant to, uint64_t value) {
  KVT_CHECK(from.ns >= 0);
  if (from >= to) return;
  widen(to);
  const auto last = static_cast<size_t>((to.ns - 1) / width_.ns);
  for (auto i = static_cast<size_t>(from.ns / width_.ns); i <= last; ++i) {
    const int64_t begin = std::max(from.ns, static_cast<int64_t>(i) * width_.ns);
    const int64_t end = std::min(to.ns, (static_cast<int64_t>(i) + 1) * width_.ns);
    sums_[i] += Integral{value} * static_cast<uint64_t>(end - begin);
  }
}

void Series::spread(Instant from, Instant to, uint64_t integral) {
  KVT_CHECK(from.ns >= 0 && from <= to);
  if (integral == 0) return;
  if (from == to) to.ns += 1;
  widen(to);
  const auto span = static_cast<uint64_t>((to - from).ns);
  const auto last = static_cast<size_t>((to.ns - 1) / width_.ns);
  uint64_t given = 0;
  for (auto i = static_cast<size_t>(from.ns / width_.ns); i <= last; ++i) {
    const int64_t end = std::min(to.ns, (static_cast<int64_t>(i) + 1) * width_.ns);
    // Cumulative amount, so that rounding errors do not accumulate.
    const auto due = static_cast<uint64_t>(Integral{integral} * static_cast<uint64_t>(end - from.ns) / span);
    sums_[i] += due - given;
    given = due;
  }
}

void Series::widen(Instant to) {
  while (to.ns > width_.ns * static_cast<int64_t>(kBuckets)) {
    width_.ns *= 2;
    for (size_t i = 0; 2 * i < sums_.size(); ++i) {
      sums_[i] = sums_[2 * i] + (2 * i + 1 < sums_.size() ? sums_[2 * i + 1] : Integral{0});
    }
    sums_.resize(div_ceil<size_t>(sums_.size(), 2));
  }
  const auto last = static_cast<size_t>((to.ns - 1) / width_.ns);
  if (sums_.size() <= last) sums_.resize(last + 1);
}

}  // namespace kvtwin
