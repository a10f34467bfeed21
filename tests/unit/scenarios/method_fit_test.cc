#include "scenarios/validate/method_fit.h"

#include <doctest/doctest.h>

#include <cmath>

namespace kvtwin {
namespace {

double& at(MethodCounts& counts, MethodTerm term) { return counts[static_cast<size_t>(term)]; }

double price(const MeasuredMethod& method, MethodTerm term) {
  for (const MeasuredMethod::Term& one : method.terms) {
    if (one.of == name_of(term)) return one.us;
  }
  return 0;
}

// Steps of 1 to 8 decodes, every seventh with a chunk, every eleventh with a compression.
std::vector<MethodSample> steps(size_t count) {
  std::vector<MethodSample> out;
  for (size_t i = 0; i < count; ++i) {
    MethodSample one;
    at(one.counts, MethodTerm::kStep) = 1;
    at(one.counts, MethodTerm::kDecode) = static_cast<double>(1 + i % 8);
    at(one.counts, MethodTerm::kChunkTokens) = i % 7 == 0 ? 0.1 * static_cast<double>(1 + i % 5) : 0;
    at(one.counts, MethodTerm::kCompression) = i % 11 == 0 ? 1 : 0;
    one.dense = 5000 + 20000 * at(one.counts, MethodTerm::kChunkTokens);
    one.measured = one.dense + 300 + 40 * at(one.counts, MethodTerm::kDecode) +
                   7000 * at(one.counts, MethodTerm::kChunkTokens) +
                   4000 * at(one.counts, MethodTerm::kCompression);
    out.push_back(one);
  }
  return out;
}

}  // namespace

TEST_CASE("method fit: finds the price of each term despite outliers") {
  std::vector<MethodSample> samples = steps(300);
  for (size_t i = 3; i < samples.size(); i += 50) samples[i].measured *= 3;  // outliers, such as first uses
  const MeasuredMethod found = fit_method("m", "tiny", samples);
  CHECK(found.name == "m");
  CHECK(found.steps == 240);
  CHECK(price(found, MethodTerm::kStep) == doctest::Approx(300).epsilon(0.02));
  CHECK(price(found, MethodTerm::kDecode) == doctest::Approx(40).epsilon(0.02));
  CHECK(price(found, MethodTerm::kChunkTokens) == doctest::Approx(7000).epsilon(0.02));
  CHECK(price(found, MethodTerm::kCompression) == doctest::Approx(4000).epsilon(0.02));
  CHECK(found.error_median < 0.001);
}

TEST_CASE("method fit: prices are never negative") {
  std::vector<MethodSample> samples = steps(200);
  for (MethodSample& one : samples)
    one.measured -= 100 * at(one.counts, MethodTerm::kDecode);  // 60 less each
  const MeasuredMethod found = fit_method("m", "tiny", samples);
  for (const MeasuredMethod::Term& one : found.terms) CHECK(one.us > 0);
  CHECK(price(found, MethodTerm::kDecode) == 0);
  CHECK(price(found, MethodTerm::kCompression) == doctest::Approx(4000).epsilon(0.05));
}

TEST_CASE("method fit: pages after attention bound a step, and are not added to it") {
  std::vector<MethodSample> samples = steps(300);
  for (size_t i = 0; i < samples.size(); ++i) {
    // Hidden in one half of the steps, exposed in the other.
    const double pages = i % 2 == 0 ? 40.0 + 20.0 * static_cast<double>(i % 7) : 20000;
    at(samples[i].counts, MethodTerm::kPageNext) = at(samples[i].counts, MethodTerm::kPageConcurrent) = pages;
    samples[i].measured = std::max(samples[i].measured, pages * 2.5);
  }
  const MeasuredMethod found = fit_method("m", "tiny", samples);
  CHECK(price(found, MethodTerm::kPageNext) == doctest::Approx(2.5).epsilon(0.02));
  CHECK(price(found, MethodTerm::kStep) == doctest::Approx(300).epsilon(0.05));
  CHECK(found.error_p90 < 0.01);
}

TEST_CASE("method fit: pages after attention are waited for if the concurrent time is too short") {
  std::vector<MethodSample> samples = steps(300);
  for (size_t i = 0; i < samples.size(); ++i) {
    // 0.1 us per page before attention; 0.2 after it, during the rest of a step; 0.02 for each page while
    // both run.
    const double kind = static_cast<double>(i % 9);  // most steps wait, which the fit does not know at first
    const double pages = kind == 8 ? 80000 : kind > 2 ? 30000 + 500 * kind : 6000 * kind;
    const double now = static_cast<double>(i % 4) * 500;
    MethodSample& one = samples[i];
    at(one.counts, MethodTerm::kPageNext) = at(one.counts, MethodTerm::kPageConcurrent) = pages;
    at(one.counts, MethodTerm::kPageNow) = now;
    one.attention = 700;
    one.measured += 0.1 * now + 0.02 * pages + std::max(0.0, 0.2 * pages - (one.measured - one.attention));
  }
  const MeasuredMethod found = fit_method("m", "tiny", samples);
  CHECK(price(found, MethodTerm::kPageNow) == doctest::Approx(0.1).epsilon(0.005));
  CHECK(price(found, MethodTerm::kPageConcurrent) == doctest::Approx(0.02).epsilon(0.005));
  CHECK(price(found, MethodTerm::kPageNext) == doctest::Approx(0.2).epsilon(0.02));
  CHECK(found.error_p90 < 0.01);
}

TEST_CASE("method fit: a step that records its graph has a least time, and is excluded from other terms") {
  std::vector<MethodSample> samples = steps(300);
  for (size_t i = 0; i < samples.size(); ++i) {
    if (i % 4 != 1) continue;
    at(samples[i].counts, MethodTerm::kRecorded) = at(samples[i].counts, MethodTerm::kNewGraph) = 1;
    samples[i].measured = std::max(samples[i].measured + 200, 9000.0);
    if (i % 3 != 0) continue;
    at(samples[i].counts, MethodTerm::kRecorded) = 0;
    samples[i].measured = samples[i].dense + 300 + 40 * at(samples[i].counts, MethodTerm::kDecode) + 200 +
                          7000 * at(samples[i].counts, MethodTerm::kChunkTokens) +
                          4000 * at(samples[i].counts, MethodTerm::kCompression);
  }
  const MeasuredMethod found = fit_method("m", "tiny", samples);
  CHECK(price(found, MethodTerm::kRecorded) == doctest::Approx(9000));
  CHECK(price(found, MethodTerm::kNewGraph) == doctest::Approx(200).epsilon(0.05));
  CHECK(price(found, MethodTerm::kStep) == doctest::Approx(300).epsilon(0.05));
  CHECK(found.error_p90 < 0.01);
}

}  // namespace kvtwin
