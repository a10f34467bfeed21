#include "models/cost_tables/thin_tables.h"

#include <doctest/doctest.h>

#include <vector>

namespace kvtwin {
namespace {

MeasuredTable table_of(const char* operation, std::vector<uint32_t> rows, std::vector<double> us) {
  MeasuredTable out{operation, "s", std::move(rows), {}, {}};
  for (const double one : us) out.at.push_back({one, one, one});
  return out;
}

}  // namespace

TEST_CASE("thin tables: points on a line go first, and the largest deviations from lines stay") {
  MeasuredDevice device;
  device.tables.push_back(table_of("qkv", {1, 2, 3, 4, 8, 16}, {10, 11, 12, 30, 34, 42}));
  const MeasuredDevice before = device;
  thin_tables(2, 6, &device);
  CHECK(device.tables[0].rows == before.tables[0].rows);  // few enough
  thin_tables(2, 4, &device);
  CHECK(device.tables[0].rows == std::vector<uint32_t>{1, 3, 4, 16});
  CHECK(device.tables[0].at[2].us == 30);
  thin_tables(2, 1, &device);
  CHECK(device.tables[0].rows == std::vector<uint32_t>{1, 16});  // ends stay
}

TEST_CASE("thin tables: an operation that is a small part of a step loses points before a large one does") {
  MeasuredDevice device;
  device.tables.push_back(table_of("embed", {1, 2, 3}, {5, 9, 5}));
  device.tables.push_back(table_of("down", {1, 2, 3}, {100, 101, 100}));
  thin_tables(32, 5, &device);
  CHECK(device.tables[0].rows == std::vector<uint32_t>{1, 3});
  CHECK(device.tables[1].rows.size() == 3);
}

TEST_CASE("thin tables: curves over contexts are thinned for each number of rows, formats too") {
  MeasuredDevice device;
  MeasuredTable attention = table_of("decode attention", {1, 1, 1, 8, 8, 8}, {5, 6, 7, 10, 50, 60});
  attention.context = {100, 200, 300, 100, 200, 300};
  device.formats.push_back({"fp8", 16, 0, {attention}});
  CHECK(points_of(device) == 6);
  thin_tables(4, 5, &device);
  const MeasuredTable& left = device.formats[0].tables[0];
  CHECK(left.rows == std::vector<uint32_t>{1, 1, 8, 8, 8});
  CHECK(left.context == std::vector<uint32_t>{100, 300, 100, 200, 300});
  CHECK(points_of(device) == 5);
}

TEST_CASE("thin tables: rows whose curves lie between their neighbours' go as a whole") {
  MeasuredDevice device;
  MeasuredTable clock =
      table_of("chunk after load", {1, 1, 2, 2, 3, 3, 4, 4}, {10, 20, 12, 22, 14, 24, 30, 40});
  clock.context = {0, 1000, 0, 1000, 0, 1000, 0, 1000};
  device.tables = {clock};
  thin_tables(4, 6, &device);
  CHECK(device.tables[0].rows == std::vector<uint32_t>{1, 1, 3, 3, 4, 4});
  thin_tables(4, 1, &device);
  CHECK(device.tables[0].rows == std::vector<uint32_t>{1, 1, 4, 4});
}

}  // namespace kvtwin
