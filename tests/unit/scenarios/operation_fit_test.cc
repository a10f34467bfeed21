#include "scenarios/validate/operation_fit.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

namespace kvtwin {
namespace {

double& at(FamilyCounts& counts, Family family) { return counts[static_cast<size_t>(family)]; }

double price(const MeasuredOperations& operations, Family family) {
  return prices_of(operations)[static_cast<size_t>(family)];
}

// Steps of 1 to 8 decodes, every seventh with a chunk, every eleventh with a compression.
std::vector<OperationSample> steps(size_t count) {
  std::vector<OperationSample> out;
  for (size_t i = 0; i < count; ++i) {
    OperationSample one;
    at(one.counts, Family::kGate) = 32;
    at(one.counts, Family::kTable) = static_cast<double>(1 + i % 8);
    at(one.counts, Family::kRowSlot) = i % 7 == 0 ? 25600.0 * static_cast<double>(1 + i % 5) : 0;
    at(one.counts, Family::kRanked) = i % 11 == 0 ? 1e6 : 0;
    one.dense = 5000 + 0.7 * at(one.counts, Family::kRowSlot);
    one.measured = one.dense + 10 * at(one.counts, Family::kGate) + 40 * at(one.counts, Family::kTable) +
                   0.06 * at(one.counts, Family::kRowSlot) + 0.004 * at(one.counts, Family::kRanked);
    out.push_back(one);
  }
  return out;
}

}  // namespace

TEST_CASE("operation fit: finds the price of each family despite outliers") {
  std::vector<OperationSample> samples = steps(300);
  for (size_t i = 3; i < samples.size(); i += 50) samples[i].measured *= 3;  // outliers, such as first uses
  const MeasuredOperations found = fit_operations(samples);
  CHECK(found.steps == 240);
  CHECK(price(found, Family::kGate) == doctest::Approx(10e3).epsilon(0.02));
  CHECK(price(found, Family::kTable) == doctest::Approx(40e3).epsilon(0.02));
  CHECK(price(found, Family::kRowSlot) == doctest::Approx(60).epsilon(0.02));
  CHECK(price(found, Family::kRanked) == doctest::Approx(4).epsilon(0.02));
  CHECK(found.error_median < 0.001);
}

TEST_CASE("operation fit: methods with other operations beside them share a family's price") {
  std::vector<OperationSample> samples = steps(200);
  for (size_t i = 1; i < samples.size(); i += 2) {  // another method, without gates
    samples[i].measured -= 10 * at(samples[i].counts, Family::kGate) - 700;
    at(samples[i].counts, Family::kGate) = 0, at(samples[i].counts, Family::kChoice) = 32;
  }
  const MeasuredOperations found = fit_operations(samples);
  CHECK(price(found, Family::kTable) == doctest::Approx(40e3).epsilon(0.02));
  CHECK(price(found, Family::kGate) == doctest::Approx(10e3).epsilon(0.02));
  CHECK(price(found, Family::kChoice) == doctest::Approx(700e3 / 32).epsilon(0.02));
}

TEST_CASE("operation fit: prices are never negative, and steps that make graphs do not count") {
  std::vector<OperationSample> samples = steps(200);
  for (OperationSample& one : samples) one.measured -= 60 * at(one.counts, Family::kTable);  // 20 less each
  for (size_t i = 0; i < samples.size(); ++i) {
    samples[i].makes_graph = i % 4 == 1;
    if (samples[i].makes_graph) samples[i].measured += 9000;
  }
  const MeasuredOperations found = fit_operations(samples);
  for (const MeasuredOperations::Price& one : found.prices) CHECK(one.ns > 0);
  CHECK(price(found, Family::kTable) == 0);
  CHECK(price(found, Family::kRanked) == doctest::Approx(4).epsilon(0.05));
}

TEST_CASE("operation fit: pages after attention bound a step, and are not added to it") {
  std::vector<OperationSample> samples = steps(300);
  for (size_t i = 0; i < samples.size(); ++i) {
    // Hidden in one half of the steps, exposed in the other.
    const double pages = i % 2 == 0 ? 40.0 + 20.0 * static_cast<double>(i % 7) : 20000;
    at(samples[i].counts, Family::kPageNext) = at(samples[i].counts, Family::kPageConcurrent) = pages;
    samples[i].measured = std::max(samples[i].measured, pages * 2.5);
  }
  const MeasuredOperations found = fit_operations(samples);
  CHECK(price(found, Family::kPageNext) == doctest::Approx(2500).epsilon(0.02));
  CHECK(price(found, Family::kGate) == doctest::Approx(10e3).epsilon(0.05));
}

TEST_CASE("operation fit: pages after attention are waited for if the concurrent time is too short") {
  std::vector<OperationSample> samples = steps(300);
  for (size_t i = 0; i < samples.size(); ++i) {
    // 0.1 us per page before attention; 0.2 after it, during the rest of a step; 0.02 for each page while
    // both run.
    const double kind = static_cast<double>(i % 9);  // most steps wait, which the fit does not know at first
    const double pages = kind == 8 ? 80000 : kind > 2 ? 30000 + 500 * kind : 6000 * kind;
    const double now = static_cast<double>(i % 4) * 500;
    OperationSample& one = samples[i];
    at(one.counts, Family::kPageNext) = at(one.counts, Family::kPageConcurrent) = pages;
    at(one.counts, Family::kPageNow) = now;
    one.attention = 700;
    one.measured += 0.1 * now + 0.02 * pages + std::max(0.0, 0.2 * pages - (one.measured - one.attention));
  }
  const MeasuredOperations found = fit_operations(samples);
  CHECK(price(found, Family::kPageNow) == doctest::Approx(100).epsilon(0.005));
  CHECK(price(found, Family::kPageConcurrent) == doctest::Approx(20).epsilon(0.005));
  CHECK(price(found, Family::kPageNext) == doctest::Approx(200).epsilon(0.02));
  CHECK(found.error_p90 < 0.01);
}

TEST_CASE("operation fit: a few long steps do not say what a page after attention costs") {
  std::vector<OperationSample> samples = steps(300);
  for (size_t i = 0; i < samples.size(); ++i) {
    OperationSample& one = samples[i];
    at(one.counts, Family::kPageNow) = static_cast<double>(i % 4) * 500;
    const double pages = i % 50 == 1 ? 1000 : 4000 + 10.0 * static_cast<double>(i % 7);
    at(one.counts, Family::kPageNext) = at(one.counts, Family::kPageConcurrent) = pages;
    one.measured += 0.1 * at(one.counts, Family::kPageNow);
    if (i % 50 == 1) one.measured *= 1.5;
  }
  const MeasuredOperations found = fit_operations(samples);
  CHECK(price(found, Family::kPageNext) == doctest::Approx(100).epsilon(0.02));
}

}  // namespace kvtwin
