// How attention work is cut into pieces for the GPU's thread blocks (docs/design/methods/tangram.md#aot,
// #partitions). Integers only.
//
// A *row* is what one (request, KV head) reads in one format; a piece is a slice of a row that one block
// (CTA) works on. Whatever the planner, pieces tile their row exactly, and rows without KV entries have none.
//
//   uniform          every row into the same number of pieces
//   flash_decoding   the same number for all rows, by the wave heuristic over the longest row
//   flashinfer       the smallest piece length with which the grid still holds all pieces (binary search)
//   stream_k         a persistent grid; block g takes the g-th equal fraction of the flattened list
//   aot              splits from calibrated budgets; O(1) per (request, group) and step

#ifndef KVTWIN_ENGINE_METHODS_PARTITION_H_
#define KVTWIN_ENGINE_METHODS_PARTITION_H_

#include <cstdint>
#include <span>
#include <vector>

namespace kvtwin {

enum class PartitionKind : uint8_t { kUniform, kFlashDecoding, kFlashInfer, kStreamK, kAotFractions };

// What AOT takes a group's work for (docs/design/methods/tangram.md#aot).
enum class AotWeight : uint8_t {
  kBudgetSum,  // Algorithm 1 of TANGRAM: the sum of its heads' budgets
  kGroupMax,   // heads * largest budget: what ragged paging really reads
};

struct PartitionSpec {
  uint32_t uniform_splits = 1;  // 0: as many as fill the grid once
  uint32_t flash_splits_max = 128;
  uint32_t tile = 64;  // KV entries; pieces end on multiples of it
  AotWeight aot_weight = AotWeight::kGroupMax;
  bool aot_exact_grid = false;  // largest remainders: splits of a layer's rows sum to the grid
  // AOT: pieces for so many grids. With 1, a few rows too many make a second wave; the paper's splits, made
  // for one request, give a batch as many waves as it has requests.
  uint32_t aot_waves = 1;
  // AOT: calibrated budgets by layer, then KV head, Q0.32 (1 << 32 is everything). Empty: equal ones.
  std::vector<uint64_t> head_budgets{};
};

struct Grid {
  uint32_t sms = 132;
  uint32_t ctas_per_sm = 2;  // by the occupancy of the attention kernel
  uint32_t page_tokens = 16;
  uint32_t cta_count() const { return sms * ctas_per_sm; }
};

struct SplitRow {
  uint32_t kv_entries = 0;
  uint32_t kv_entry_bytes = 1;  // planners weigh work by bytes where formats mix
  // aot: planned work of this row's group / its rows; else unused.
  uint64_t planned_work = 0;
  uint32_t group_rows = 1;  // aot: rows (members) of the head group
};

struct SplitItem {
  uint32_t row = 0;
  uint32_t begin = 0, end = 0;  // KV entries
  uint32_t cta = 0;             // who works on it; without a persistent grid, each its own
  friend bool operator==(const SplitItem&, const SplitItem&) = default;
};

// Pieces of one layer; `plan` is cleared first. Ascending by (row, begin).
void plan_partition(PartitionKind kind, const PartitionSpec& spec, const Grid& grid,
                    std::span<const SplitRow> rows, std::vector<SplitItem>* plan);

// Length of the pieces of a row of `kv_entries` that is cut into at most `splits`, but for the last one.
uint32_t piece_entries(uint32_t kv_entries, uint32_t splits, uint32_t tile);
// Splits of each of `rows` rows with which their pieces fill the grid, and not more.
uint32_t grid_filling_splits(uint32_t rows, uint32_t ctas);

// Splits of all rows by FlashAttention's heuristic. blocks: rows * blocks per row; tiles: of the longest row.
uint32_t flash_decoding_splits(uint32_t blocks, uint32_t sms, uint32_t tiles, uint32_t splits_max);

// Pages per piece: the smallest count >= max(128 / page_tokens, 1) with which all rows fit the grid; 0: no
// row is cut, because the rows alone fill the grid.
uint32_t flashinfer_chunk_pages(std::span<const SplitRow> rows, const Grid& grid);

// AOT, offline part. Weight of each group of a layer; `groups` lists member heads, `budgets` are Q0.32.
std::vector<uint64_t> aot_weights(std::span<const uint64_t> budgets,
                                  std::span<const std::vector<uint32_t>> groups, AotWeight weight);
// Splits of each group: max(1, round(weight / (sum / ctas))), halves away from zero. exact: largest
// remainders instead, each at least 1; their sum is `ctas` (unless there are more groups than that).
std::vector<uint32_t> aot_splits(std::span<const uint64_t> weights, uint32_t ctas, bool exact);
// Per member head: a CTA serves one.
uint32_t aot_member_splits(uint32_t group_splits, uint32_t members);
// Whether tails that decode has grown have flattened lengths so much that weights must be taken anew:
// tail > mean length / 10. lengths_sum over `groups` groups, tails included.
bool aot_fractions_are_stale(uint64_t lengths_sum, uint32_t groups, uint32_t tail);

// The slowest piece beside the mean: ratio = work * ctas / (splits * work_sum).
struct SlowestSplit {
  uint64_t work = 0;    // of the unit whose pieces are largest
  uint32_t splits = 1;  // into which it is cut
  uint64_t work_sum = 0;
  uint32_t ctas = 1;
};
// REQUIRES: both spans have the same length, splits >= 1.
SlowestSplit straggler_of(std::span<const uint64_t> works, std::span<const uint32_t> splits, uint32_t ctas);
// The same for pieces: the most loaded CTA, by bytes.
SlowestSplit straggler_of(std::span<const SplitRow> rows, std::span<const SplitItem> plan, uint32_t ctas);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_PARTITION_H_
