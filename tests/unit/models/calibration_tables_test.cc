#include "engine/calibrate/calibration_tables.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "models/cost_tables/measured_device.h"

namespace kvtwin {
namespace {

using cuda::CalibrationTables;
using cuda::TimedStep;

Measured exact_us(double value) { return {value, value, value}; }

const MeasuredTable& table(const std::vector<MeasuredTable>& all, const std::string& operation) {
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const MeasuredTable& one) { return one.operation == operation; });
  REQUIRE(found != all.end());
  return *found;
}

// Ten products of 10 us with an event each, and one attention.
TimedStep step(bool chunk, uint32_t rows, double product, double wall) {
  TimedStep out;
  out.parts = {{"qkv", "s", rows, 0, exact_us(product), 10, true, false},
               {chunk ? "chunk attention" : "decode attention", "a", rows, 0, exact_us(6), 1, true, true}};
  out.wall = exact_us(wall), out.events = 11, out.chunk = chunk, out.rows = rows;
  return out;
}

}  // namespace

// A product takes 10 us in a graph and 14 when launched alone; the table of 64 rows has 10 for both.
TEST_CASE("calibration: the time of a chunk of few rows above its graph operations is host time") {
  CalibrationTables tables("m", 1);
  tables.add(step(false, 64, 11, 105));  // operations sum to 116: an event adds 1 us
  tables.add(step(true, 64, 15, 145));   // operations sum to 156
  tables.add(step(true, 512, 51, 505));  // operations sum to 516
  const CalibrationTables::Found found = tables.take_steps();
  CHECK(found.event_us == doctest::Approx(1));
  const std::vector<MeasuredTable> all = tables.tables();
  const MeasuredTable& product = table(all, "qkv");
  REQUIRE(product.rows == std::vector<uint32_t>{64, 512});
  CHECK(product.at[0].us == doctest::Approx(10));
  CHECK(product.at[1].us == doctest::Approx(50));
  CHECK(table(all, "decode host").at[0].us == doctest::Approx(0));
  const MeasuredTable& host = table(all, "chunk host");
  REQUIRE(host.rows == std::vector<uint32_t>{64, 512});
  CHECK(host.at[0].us == doctest::Approx(40));
  CHECK(host.at[1].us == doctest::Approx(0));
}

// Timed at another clock rate, operations sum to 520 us; over all passes the step takes 572.
TEST_CASE("calibration: operations of many rows are fractions of their steps' time over all passes") {
  CalibrationTables tables("m", 1);
  tables.add(step(true, 512, 52, 515));
  TimedStep slower = step(true, 1024, 52, 572);
  slower.parts[0].rows = 1024;
  tables.add(slower);
  tables.take_steps();
  const std::vector<MeasuredTable> all = tables.tables();
  for (const auto& [i, wall] : {std::pair(0, 515.0), std::pair(1, 572.0)}) {
    const size_t at = static_cast<size_t>(i);
    CHECK(10 * table(all, "qkv").at[at].us + table(all, "chunk attention").at[at].us ==
          doctest::Approx(wall));
    CHECK(table(all, "chunk host").at[at].us == doctest::Approx(0));
  }
}

TEST_CASE("calibration: attention behind a context is timed by itself") {
  CalibrationTables tables("m", 1);
  tables.add(step(true, 512, 51, 505));
  TimedStep first = step(true, 1024, 56, 555);
  tables.add(first);
  TimedStep further = step(true, 1024, 45, 0);
  further.parts[1].context = 4096, further.parts[1].time = {81, 73, 89};
  tables.add(further);
  CHECK(tables.take_steps().event_us == doctest::Approx(1));  // it has no whole steps
  const std::vector<MeasuredTable> all = tables.tables();
  CHECK(table(all, "qkv").rows.size() == 2);
  const MeasuredTable& attention = table(all, "chunk attention");
  REQUIRE(attention.context == std::vector<uint32_t>{0, 0, 4096});
  CHECK(attention.at[2].us == doctest::Approx(80));
  CHECK(attention.at[2].p10 == doctest::Approx(72));
  CHECK(attention.at[2].p90 == doctest::Approx(88));
}

TEST_CASE("calibration: attention of decodes is the difference to a step with a shorter context") {
  CalibrationTables tables("m", 2);
  tables.add(step(false, 64, 11, 105));
  TimedStep further;
  further.parts = {{"decode attention", "a", 64, 4096, {}, 0, true, true}};
  further.wall = exact_us(143), further.beside = exact_us(115), further.rows = 64;
  tables.add(further);
  tables.take_steps();
  const MeasuredTable attention = table(tables.tables(), "decode attention");
  REQUIRE(attention.context == std::vector<uint32_t>{0, 4096});
  CHECK(attention.at[1].us == doctest::Approx(attention.at[0].us + 14));
}

TEST_CASE("calibration: a table has the median of the measurements") {
  CHECK(cuda::middle_of({10, 10, 10, 10, 11, 11, 11, 11, 11, 500}).us == doctest::Approx(64.0 / 6));
  CHECK(cuda::middle_of({7}).us == doctest::Approx(7));
  CHECK(cuda::middle_of({10, 20}).p90 >= 15);
}

}  // namespace kvtwin
