#include "kernels/grids/partition.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "engine/base/prng.h"

using namespace kvtwin;

namespace {

constexpr PartitionKind kKinds[] = {PartitionKind::kUniform, PartitionKind::kFlashDecoding,
                                    PartitionKind::kFlashInfer, PartitionKind::kStreamK,
                                    PartitionKind::kAotFractions};

std::vector<SplitItem> plan_of(PartitionKind kind, const PartitionSpec& spec, const Grid& grid,
                               const std::vector<SplitRow>& rows) {
  std::vector<SplitItem> plan{{9, 9, 9, 9}};
  plan_partition(kind, spec, grid, rows, &plan);
  return plan;
}

double ratio(const SlowestSplit& s) {
  return static_cast<double>(s.work) * s.ctas /
         (static_cast<double>(s.splits) * static_cast<double>(s.work_sum));
}

// True if the splits of each row cover [0, KV entries) in order, none is empty, and all but a row's last end
// at a tile boundary.
bool tiles_exactly(const std::vector<SplitRow>& rows, const std::vector<SplitItem>& plan, uint32_t tile) {
  size_t at = 0;
  for (uint32_t r = 0; r < rows.size(); ++r) {
    uint32_t covered = 0;
    for (; at < plan.size() && plan[at].row == r; ++at) {
      if (plan[at].begin != covered || plan[at].end <= covered) return false;
      covered = plan[at].end;
      if (covered != rows[r].kv_entries && covered % tile != 0) return false;
    }
    if (covered != rows[r].kv_entries) return false;
  }
  return at == plan.size();
}

}  // namespace

TEST_CASE("partition: the splits of every planner tile every row exactly") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    PartitionSpec spec;
    spec.uniform_splits = static_cast<uint32_t>(prng.range(1, 9));
    spec.tile = 1u << prng.range(4, 7);
    const Grid grid{static_cast<uint32_t>(prng.range(1, 140)), static_cast<uint32_t>(prng.range(1, 4)),
                    1u << prng.range(0, 7)};
    std::vector<SplitRow> rows(prng.range(0, 80));
    for (SplitRow& row : rows) {
      row.kv_entries =
          prng.chance(1, 8) ? 0 : static_cast<uint32_t>(prng.range(1, prng.chance(1, 4) ? 50'000 : 500));
      row.kv_entry_bytes = prng.chance(1, 2) ? 96 : 160;
      row.group_rows = 1u << prng.range(0, 3);
      row.planned_work = prng.range(0, 1'000'000);
    }
    for (const PartitionKind kind : kKinds) {
      CAPTURE(static_cast<int>(kind));
      const auto plan = plan_of(kind, spec, grid, rows);
      CHECK(tiles_exactly(rows, plan, kind == PartitionKind::kFlashInfer ? grid.page_tokens : spec.tile));
      for (const SplitItem& item : plan) {
        if (kind == PartitionKind::kStreamK) CHECK(item.cta < grid.cta_count());
        if (kind == PartitionKind::kUniform) {
          const uint32_t equal = (rows[item.row].kv_entries + spec.uniform_splits - 1) / spec.uniform_splits;
          CHECK(item.end - item.begin <= (equal + spec.tile - 1) / spec.tile * spec.tile);
        }
      }
    }
  }
}

TEST_CASE("partition: FlashDecoding's heuristic, by hand") {
  CHECK(flash_decoding_splits(128, 132, 100, 128) == 1);  // 128 >= 0.8 * 132
  CHECK(flash_decoding_splits(105, 132, 100, 128) == 5);  // 1 to 4: .795; 5: 525/528; 44 would be 1
  CHECK(flash_decoding_splits(8, 132, 4, 128) == 1);      // too short to split
  CHECK(flash_decoding_splits(8, 132, 512, 128) == 15);   // 14: 112/132 = .848; 15: .909; 33 would be 1
  CHECK(flash_decoding_splits(1, 132, 8, 128) == 7);      // at most 8: 8/132; 7 is .875 of it
}

TEST_CASE("partition: FlashInfer's plan is the smallest chunk that fits the grid") {
  const Grid grid{4, 2, 16};
  const auto pages = [&](std::vector<uint32_t> lengths) {
    std::vector<SplitRow> rows;
    for (const uint32_t kv_entries : lengths) rows.push_back({kv_entries});
    return flashinfer_chunk_pages(rows, grid);
  };
  CHECK(pages({1600, 1600}) == 25);  // 4 splits of 25 pages each: 8 CTAs
  CHECK(pages({1616, 1600}) == 26);
  CHECK(pages({100, 100}) == 8);                          // never below 128 KV entries
  CHECK(pages({10, 10, 10, 10, 10, 10, 10, 5000}) == 0);  // the rows alone fill the grid
  CHECK(pages({}) == 8);
  for (uint64_t seed = 0; seed < 200; ++seed) {  // compared with trying all sizes
    Prng prng(seed);
    std::vector<uint32_t> lengths(prng.range(1, 7));
    for (uint32_t& kv_entries : lengths) kv_entries = static_cast<uint32_t>(prng.range(1, 9000));
    uint32_t smallest = 8;
    const auto pieces = [&](uint32_t chunk) {
      uint32_t sum = 0;
      for (const uint32_t kv_entries : lengths) sum += ((kv_entries + 15) / 16 + chunk - 1) / chunk;
      return sum;
    };
    while (pieces(smallest) > 8) ++smallest;
    CHECK(pages(lengths) == smallest);
  }
}

TEST_CASE("partition: stream-K gives every CTA the same work, to one tile of the heavier format") {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    const Grid grid{static_cast<uint32_t>(prng.range(2, 132)), 1, 16};
    PartitionSpec spec;
    std::vector<SplitRow> rows(prng.range(1, 40));
    uint64_t total = 0;
    for (SplitRow& row : rows) {
      row = {static_cast<uint32_t>(prng.range(0, 400)) * 64, prng.chance(1, 2) ? 96u : 160u};
      total += uint64_t{row.kv_entries} * row.kv_entry_bytes;
    }
    std::vector<uint64_t> load(grid.cta_count(), 0);
    uint32_t before = 0;
    for (const SplitItem& item : plan_of(PartitionKind::kStreamK, spec, grid, rows)) {
      CHECK(item.cta >= before);  // in order, so that a merge finds its splits in closed form
      before = item.cta;
      load[item.cta] += uint64_t{item.end - item.begin} * rows[item.row].kv_entry_bytes;
    }
    for (const uint64_t bytes : load) CHECK(bytes <= total / grid.cta_count() + 160 * 64);
  }
  // Equal weights: CTA g has blocks [g N / W, (g + 1) N / W).
  const std::vector<SplitRow> rows = {{10 * 64}, {7 * 64}};
  for (const SplitItem& item : plan_of(PartitionKind::kStreamK, {}, {5, 1, 16}, rows)) {
    const uint32_t first = item.begin / 64 + (item.row == 1 ? 10 : 0),
                   last = (item.end - 1) / 64 + (item.row == 1 ? 10 : 0);
    CHECK(first >= item.cta * 17 / 5);
    CHECK(last < (item.cta + 1) * 17 / 5);
  }
}

TEST_CASE("partition: AOT's splits, rounding, members and outdated fractions") {
  const uint64_t weights[] = {50, 30, 20, 0};
  CHECK(aot_splits(weights, 10, false) == std::vector<uint32_t>{5, 3, 2, 1});
  CHECK(aot_splits(weights, 10, true) == std::vector<uint32_t>{4, 3, 2, 1});
  const uint64_t halves[] = {1, 1, 1, 1};
  CHECK(aot_splits(halves, 6, false) == std::vector<uint32_t>{2, 2, 2, 2});  // 1.5 rounds away from zero
  CHECK(aot_splits(halves, 6, true) == std::vector<uint32_t>{2, 2, 1, 1});
  CHECK(aot_splits(halves, 2, true) == std::vector<uint32_t>{1, 1, 1, 1});
  const uint64_t none[] = {0, 0};
  CHECK(aot_splits(none, 8, true) == std::vector<uint32_t>{1, 1});
  CHECK(aot_member_splits(10, 4) == 3);
  CHECK(aot_member_splits(1, 4) == 1);
  CHECK(!aot_fractions_are_stale(1000, 10, 10));
  CHECK(aot_fractions_are_stale(1000, 10, 11));
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Prng prng(seed);
    std::vector<uint64_t> random(prng.range(1, 30));
    for (uint64_t& w : random) w = prng.range(0, uint64_t{1} << 34);
    random[0] += 1;
    const uint32_t ctas = static_cast<uint32_t>(prng.range(30, 300));
    uint64_t sum = 0;
    for (const uint32_t s : aot_splits(random, ctas, true)) sum += s;
    CHECK(sum == ctas);
  }
}

TEST_CASE("partition: the batch rule divides the grid by work for every batch") {
  // Two requests of 1,000 and 3,000 tokens, with two groups of two heads each that retain 1/4 and 3/4.
  std::vector<SplitRow> rows;
  for (const uint32_t n : {1000u, 3000u}) {
    for (const uint32_t quarter : {1u, 3u}) {
      for (int member = 0; member < 2; ++member) rows.push_back({n * quarter / 4, 1, n * quarter, 2});
    }
  }
  PartitionSpec spec;
  spec.tile = 1;
  const auto plan = plan_of(PartitionKind::kAotFractions, spec, {32, 1, 16}, rows);
  std::vector<uint32_t> pieces(rows.size(), 0);
  for (const SplitItem& item : plan) ++pieces[item.row];
  CHECK(pieces == std::vector<uint32_t>{1, 1, 3, 3, 3, 3, 9, 9});  // of 32: 2, 6, 6, 18 per group
  CHECK(plan.size() == 32);
  CHECK(ratio(straggler_of(rows, plan, 32)) == doctest::Approx(1.0).epsilon(0.01));
}

TEST_CASE("partition: the ratio of the slowest split") {
  const uint64_t works[] = {90, 10};
  const uint32_t fair[] = {9, 1}, same[] = {5, 5};
  CHECK(ratio(straggler_of(works, fair, 10)) == doctest::Approx(1.0));
  CHECK(ratio(straggler_of(works, same, 10)) == doctest::Approx(1.8));
}
