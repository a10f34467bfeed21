// Partition planners divide attention work into splits for the GPU's CTAs
// (docs/design/methods/tangram.md#aot, #partitions). Integers only.
//
// A *row* is what one (request, KV head) reads in one format. A split is a range of a row that one CTA
// processes. Whatever the planner, splits tile their row exactly, and rows without KV entries have none.
//
//   uniform          every row has the same number of splits
//   flash_decoding   the same number for all rows, by the wave heuristic over the longest row
//   flashinfer       the smallest split length for which the grid holds all splits (binary search)
//   stream_k         a persistent grid; CTA g takes the g-th equal fraction of the flattened list
//   aot              splits from calibrated budgets; O(1) per (request, group) and step

#ifndef KVTWIN_KERNELS_GRIDS_PARTITION_H_
#define KVTWIN_KERNELS_GRIDS_PARTITION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/partition_kind.h"

namespace kvtwin {

// How AOT measures the work of a group (docs/design/methods/tangram.md#aot).
enum class AotWeight : uint8_t {
  kBudgetSum,  // Algorithm 1 of TANGRAM: the sum of its heads' budgets
  kGroupMax,   // heads * largest budget: the KV entries that ragged paging reads
};

struct PartitionSpec {
  uint32_t uniform_splits = 1;  // 0: as many as fill the grid once
  uint32_t flash_splits_max = 128;
  uint32_t tile = 64;  // KV entries; splits end at multiples of it
  AotWeight aot_weight = AotWeight::kGroupMax;
  bool aot_exact_grid = false;  // largest remainders: splits of a layer's rows sum to the grid
  // AOT: the number of grids that the splits fill. With 1, a few rows too many cause a second wave. The
  // paper's splits are made for one request, so a batch gets as many waves as it has requests.
  uint32_t aot_waves = 1;
  // AOT: calibrated budgets by layer, then KV head, Q0.32 (1 << 32: all KV entries). Empty: equal budgets.
  std::vector<uint64_t> head_budgets{};
};

struct Grid {
  uint32_t sms = 132;
  uint32_t ctas_per_sm = 2;  // occupancy of the attention kernel
  uint32_t page_tokens = 16;
  uint32_t cta_count() const { return sms * ctas_per_sm; }
};

struct SplitRow {
  uint32_t kv_entries = 0;
  uint32_t kv_entry_bytes = 1;  // planners weigh work by bytes if formats differ
  // aot: planned work of this row's group / its rows; unused otherwise.
  uint64_t planned_work = 0;
  uint32_t group_rows = 1;  // aot: rows (members) of the head group
};

struct SplitItem {
  uint32_t row = 0;
  uint32_t begin = 0, end = 0;  // KV entries
  uint32_t cta = 0;             // the CTA that processes it; without a persistent grid, one per split
  friend bool operator==(const SplitItem&, const SplitItem&) = default;
};

// Splits of one layer replace *plan, ascending by (row, begin).
void plan_partition(PartitionKind kind, const PartitionSpec& spec, const Grid& grid,
                    std::span<const SplitRow> rows, std::vector<SplitItem>* plan);

// Length of all splits but the last, of a row of `kv_entries` that is divided into at most `splits`.
uint32_t piece_entries(uint32_t kv_entries, uint32_t splits, uint32_t tile);
// The largest number of splits per row for which the splits of `rows` rows do not exceed the grid.
uint32_t grid_filling_splits(uint32_t rows, uint32_t ctas);

// Splits per row by FlashAttention's heuristic. blocks: rows * blocks per row; tiles: of the longest row.
uint32_t flash_decoding_splits(uint32_t blocks, uint32_t sms, uint32_t tiles, uint32_t splits_max);

// Pages per split: the smallest count >= max(128 / page_tokens, 1) for which all rows fit the grid. 0: no row
// is divided, because the rows alone fill the grid.
uint32_t flashinfer_chunk_pages(std::span<const SplitRow> rows, const Grid& grid);

// AOT, offline part: weight of each group of a layer. `groups` lists member heads; `budgets` are Q0.32.
std::vector<uint64_t> aot_weights(std::span<const uint64_t> budgets,
                                  std::span<const std::vector<uint32_t>> groups, AotWeight weight);
// Splits of each group: max(1, round(weight / (sum / ctas))), halves away from zero. exact: largest
// remainders instead, each at least 1; their sum is `ctas` (unless there are more groups than that).
std::vector<uint32_t> aot_splits(std::span<const uint64_t> weights, uint32_t ctas, bool exact);
// Splits per member head, because a CTA serves one head.
uint32_t aot_member_splits(uint32_t group_splits, uint32_t members);
// Whether the decoded tails have equalised lengths so much that weights must be recomputed:
// tail > mean length / 10. lengths_sum is over `groups` groups, tails included.
bool aot_fractions_are_stale(uint64_t lengths_sum, uint32_t groups, uint32_t tail);

// The slowest split relative to the mean: ratio = work * ctas / (splits * work_sum).
struct SlowestSplit {
  uint64_t work = 0;    // of the unit whose splits are largest
  uint32_t splits = 1;  // of that unit
  uint64_t work_sum = 0;
  uint32_t ctas = 1;
};
// REQUIRES: both spans have the same length, splits >= 1.
SlowestSplit straggler_of(std::span<const uint64_t> works, std::span<const uint32_t> splits, uint32_t ctas);
// The same for planned splits: the most loaded CTA, by bytes.
SlowestSplit straggler_of(std::span<const SplitRow> rows, std::span<const SplitItem> plan, uint32_t ctas);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_GRIDS_PARTITION_H_
