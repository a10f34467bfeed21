#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "traces/synth/synthesize_draws.h"

namespace kvtwin {
namespace {

enum class Field { kOne, kTwo };

TEST_CASE("log2 and exp2 in integers agree with the mathematical functions") {
  for (uint64_t x = 1; x < (uint64_t{1} << 60); x = x * 3 + 1) {
    CAPTURE(x);
    const double exact = std::log2(static_cast<double>(x));
    CHECK(std::abs(std::ldexp(static_cast<double>(log2_q32(x)), -32) - exact) < 1e-8);
    const auto back = static_cast<double>(exp2_q32(log2_q32(x)));
    CHECK(std::abs(back - static_cast<double>(x)) <= 1.0 + 1e-8 * static_cast<double>(x));
  }
  CHECK(exp2_q32(0) == 1);
  CHECK(exp2_q32(uint64_t{10} << 32) == 1'024);
}

TEST_CASE("quantiles hit the points of their table and stay within it") {
  constexpr QuantilePoint kTable[] = {{0, 4}, {25'000, 8}, {50'000, 8}, {100'000, 8'000'000}};
  CHECK(quantile(kTable, 0) == 4);
  CHECK(quantile(kTable, UINT64_MAX) <= 8'000'000);
  CHECK(quantile(kTable, UINT64_MAX) > 7'900'000);
  CHECK(quantile(kTable, uint64_t{1} << 62) == 8);
  CHECK(quantile(kTable, uint64_t{3} << 62) ==
        doctest::Approx(8'000).epsilon(0.01));  // geometric: sqrt(8 * 8e6)
  int64_t before = 0;
  for (uint64_t u = 0; u < 1'000; ++u) {
    const int64_t value = quantile(kTable, u * (UINT64_MAX / 1'000));
    CHECK(value >= before);
    before = value;
  }
}

TEST_CASE("a table that starts at or below zero is interpolated linearly") {
  constexpr QuantilePoint kTable[] = {{0, -100}, {100'000, 100}};
  CHECK(quantile(kTable, uint64_t{1} << 63) == 0);
}

TEST_CASE("exponential draws have the mean and the spread of an exponential distribution") {
  const SessionDraws dice(7, 1);
  double sum = 0, squares = 0;
  constexpr int kDraws = 20'000;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const auto x = static_cast<double>(exponential(1'000'000, dice.bits(Field::kOne, i)));
    sum += x;
    squares += x * x;
  }
  const double mean = sum / kDraws;
  CHECK(mean == doctest::Approx(1e6).epsilon(0.02));
  CHECK(std::sqrt(squares / kDraws - mean * mean) == doctest::Approx(1e6).epsilon(0.04));
  CHECK(exponential(1'000, UINT64_MAX) == 0);
  CHECK(exponential(1'000, 0) > 40'000);  // -ln(2^-64) = 44.4
}

TEST_CASE("a draw depends on its key only") {
  const SessionDraws a(1, 2), b(1, 2), other(1, 3);
  CHECK(a.bits(Field::kOne, 5) == b.bits(Field::kOne, 5));
  CHECK(a.bits(Field::kOne, 5) != a.bits(Field::kTwo, 5));
  CHECK(a.bits(Field::kOne, 5) != other.bits(Field::kOne, 5));
  CHECK(a.bits(Field::kOne, 5) == 0x0u + draw({1, 2, 0, 5, 0}));
}

}  // namespace
}  // namespace kvtwin
