// Lists of a step that the device completes, compared with what they say.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <optional>
#include <utility>
#include <vector>

#include "kernels/bench/decode_problem.cuh"
#include "kernels/cache_ops/step_tables.h"
#include "tests/support/gpu_main.h"

namespace kvtwin::test {
namespace {

// Two requests of two tables, three layers of two heads: pages in order, a list of KV entries, a ring whose
// rows go on elsewhere from the second on, and rows that are written nowhere.
TEST_CASE("tables are completed in ranges, and rows find their slots") {
  constexpr uint32_t kLayers = 3, kHeads = 2, kPage = 4, kColumns = 5;
  const std::vector<uint32_t> numbers = {7, 3, 9, 22, 41, 6};
  const std::vector<TableRange> ranges = {{1, 0, 3}, {10, 3, 2}, {20, 5, 1}};
  const DeviceArray<uint32_t> tables(std::vector<uint32_t>(24, 1000));
  const DeviceArray<uint32_t> numbers_on(numbers);
  const DeviceArray<TableRange> ranges_on(ranges);
  KVT_CUDA(update_tables(ranges_on.get(), 3, numbers_on.get(), tables.get(), nullptr));
  const std::vector<uint32_t> after = tables.read();
  for (uint32_t i = 0; i < after.size(); ++i) {
    uint32_t expected = 1000;
    for (const TableRange& range : ranges)
      if (i >= range.to && i < range.to + range.count) expected = numbers[range.from + i - range.to];
    CHECK(after[i] == expected);
  }
  const std::vector<RowCells> cells = {{1, 6, 6, 3, 0}, {10, 0, 0, 2, 1}, {1, 3, 9, 1, 0}, {20, 0, 0, 9, 0}};
  const std::vector<RowOf> rows = {{0, 0}, {0, 1}, {kNoBlock, 0}, {2, 0}, {2, 1}};
  std::vector<HeadCells> heads;
  for (uint32_t h = 0; h < kLayers * kHeads; ++h) heads.push_back({h % 2, h % kColumns});
  const DeviceArray<RowCells> cells_on(cells);
  const DeviceArray<RowOf> rows_on(rows);
  const DeviceArray<HeadCells> heads_on(heads);
  const DeviceArray<AppendSlot> slots(std::vector<AppendSlot>(rows.size() * heads.size(), {9, 9}));
  RowSlotArgs args{tables.get(), rows_on.get(), cells_on.get(), heads_on.get(), slots.get()};
  args.row_count = static_cast<uint32_t>(rows.size()), args.layers = kLayers, args.kv_heads = kHeads;
  args.page_tokens = kPage, args.columns = kColumns;
  KVT_CUDA(write_row_slots(args, nullptr));
  const std::vector<AppendSlot> got = slots.read();
  // By row and table: page and slot. KV entries 6 and 7 are in the table's second page, 3 in its first, 10 in
  // its third; 22 and 41 are ids.
  const std::optional<std::pair<uint32_t, uint32_t>> expected[5][2] = {
      {{{3, 2}}, {{5, 2}}}, {{{3, 3}}, {{10, 1}}}, {{}, {}}, {{{7, 3}}, {{6, 0}}}, {{{9, 2}}, {{6, 1}}}};
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    for (uint32_t row = 0; row < rows.size(); ++row) {
      for (uint32_t h = 0; h < kHeads; ++h) {
        const AppendSlot& slot = got[(layer * rows.size() + row) * kHeads + h];
        const uint32_t head = layer * kHeads + h;
        const auto& want = expected[row][heads[head].cells];
        CHECK(slot.block == (want ? want->first * kColumns + heads[head].column : kNoBlock));
        CHECK(slot.slot == (want ? want->second : 0));
      }
    }
  }
}
// A chunk behind 5 KV entries, and one over the end of a ring of 4 sinks and 6 others, whose table goes on
// with position 6 behind the sinks.
TEST_CASE("rows of chunks are listed") {
  const std::vector<QueryRun> runs = {{3, 2, 0, 40, 5, 1, 6}, {5, 3, 2, 50, 0, 0, 2, 4, 6, 11, 6}};
  const DeviceArray<QueryRun> runs_on(runs);
  const DeviceArray<QueryRow> rows(5);
  KVT_CUDA(write_query_rows(runs_on.get(), 2, rows.get(), nullptr));
  const std::vector<QueryRow> got = rows.read();
  const uint32_t expected[5][7] = {{3, 40, 6, 1, 6, UINT32_MAX, 0},
                                   {4, 40, 7, 1, 6, UINT32_MAX, 0},
                                   {5, 50, 10, 0, 2, 4, 0},
                                   {6, 50, 10, 0, 2, 4, 1},
                                   {7, 50, 10, 0, 2, 4, 2}};
  for (size_t i = 0; i < 5; ++i) {
    const QueryRow& row = got[i];
    const uint32_t found[] = {row.row, row.table, row.kv_entries, row.head, row.column, row.sinks, row.gap};
    for (size_t k = 0; k < 7; ++k) CHECK(found[k] == expected[i][k]);
  }
}

}  // namespace
}  // namespace kvtwin::test

int main(int argc, char** argv) { return kvtwin::testing::run_on_gpu(argc, argv, kvtwin::test::gpus()); }
