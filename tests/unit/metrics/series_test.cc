// Distributions, histograms and series: how metrics add up numbers over a run.

#include <doctest/doctest.h>

#include <vector>

#include "engine/base/prng.h"
#include "engine/metrics/metrics.h"
#include "engine/metrics/metrics_summary.h"

namespace kvtwin {

TEST_CASE("distribution: percentiles are nearest-rank values that occurred") {
  std::vector<double> values;
  for (int i = 10; i >= 1; --i) values.push_back(i);
  const Distribution found = distribution(&values);
  CHECK(found.p50 == 5);
  CHECK(found.p90 == 9);
  CHECK(found.p95 == 10);
  CHECK(found.p99 == 10);
  CHECK(found.mean == 5.5);
  values = {3};
  CHECK(distribution(&values).p50 == 3);
}

TEST_CASE("histogram: quantiles are within 0.1 % of the sorted numbers that they represent") {
  Prng prng(7);
  LogHistogram histogram;
  std::vector<double> values;
  for (int i = 0; i < 5000; ++i) {
    const auto value = static_cast<int64_t>(prng.range(0, uint64_t{1} << prng.range(1, 40)));
    histogram.add(Duration{value}, 1);
    values.push_back(static_cast<double>(value));
  }
  const Distribution exact = distribution(&values);
  CHECK(histogram.quantile_ns(50) == doctest::Approx(exact.p50).epsilon(0.001));
  CHECK(histogram.quantile_ns(99) == doctest::Approx(exact.p99).epsilon(0.001));
  CHECK(histogram.mean_ns() == doctest::Approx(exact.mean));
  CHECK(static_cast<double>(histogram.max().ns) == exact.max);
}

TEST_CASE("series: outgrowing its buckets keeps every integral") {
  Series series;
  Integral expected = 0;
  Prng prng(3);
  int64_t at = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto span = static_cast<int64_t>(prng.range(1, 5'000'000));
    const uint64_t value = prng.range(0, 100);
    series.add(Instant{at}, Instant{at + span}, value);
    expected += Integral{value} * static_cast<uint64_t>(span);
    at += span;
  }
  Integral sum = 0;
  for (const Integral part : series.integrals()) sum += part;
  CHECK(sum == expected);
  CHECK(series.integrals().size() <= Series::kBuckets);
  CHECK(series.width().ns * static_cast<int64_t>(Series::kBuckets) >= at);
}

TEST_CASE("series: disks of 8 TB in two engines over twelve days do not overflow a bucket") {
  constexpr uint64_t kPages = uint64_t{2} * 8'000'000'000'000 / 1'048'576;  // llama-3.1-8b, pages of 8 tokens
  constexpr int64_t kHour = 3'600'000'000'000;
  Series series;
  for (int64_t hour = 0; hour < 12 * 24; ++hour) {
    for (int engine = 0; engine < 2; ++engine) {
      series.add(Instant{hour * kHour}, Instant{(hour + 1) * kHour}, kPages / 2);
    }
  }
  const auto width = static_cast<double>(series.width().ns);
  for (size_t i = 0; i + 1 < series.integrals().size(); ++i) {  // the last bucket is not full
    CHECK(static_cast<double>(series.integrals()[i]) / width == doctest::Approx(static_cast<double>(kPages)));
  }
}

TEST_CASE("series: a spread amount is distributed evenly and completely") {
  Series series;
  Prng prng(4);
  uint64_t expected = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto from = static_cast<int64_t>(prng.range(0, 900'000'000));
    const auto span = static_cast<int64_t>(prng.range(0, 5'000'000));
    const uint64_t part = prng.range(0, 1'000'000'000'000);
    series.spread(Instant{from}, Instant{from + span}, part);
    expected += part;
  }
  Integral sum = 0;
  for (const Integral amount : series.integrals()) sum += amount;
  CHECK(bool(sum == expected));
  Series even;
  even.spread(Instant{500'000}, Instant{2'500'000}, 8);
  CHECK(bool(even.integrals() == std::vector<Integral>{2, 4, 2}));
}

}  // namespace kvtwin
