#include "kernels/grids/partition.h"

#include <algorithm>
#include <bit>

#include "engine/base/check.h"
#include "engine/base/units.h"

namespace kvtwin {
namespace {

using Wide = unsigned __int128;

uint32_t round_up(uint32_t value, uint32_t unit) { return div_ceil(value, unit) * unit; }

// Appends at most `splits` splits of equal length, except the last.
void cut_row(uint32_t row, uint32_t kv_entries, uint32_t splits, uint32_t tile,
             std::vector<SplitItem>* plan) {
  if (kv_entries == 0) return;
  const uint32_t piece = piece_entries(kv_entries, splits, tile);
  for (uint32_t begin = 0; begin < kv_entries; begin += std::min(piece, kv_entries - begin)) {
    plan->push_back(
        {row, begin, begin + std::min(piece, kv_entries - begin), static_cast<uint32_t>(plan->size())});
  }
}

uint32_t longest(std::span<const SplitRow> rows) {
  uint32_t kv_entries = 0;
  for (const SplitRow& row : rows) kv_entries = std::max(kv_entries, row.kv_entries);
  return kv_entries;
}

// A block is one tile, weighted by its bytes. Block i ends at weight e_i of T and belongs to CTA
// ceil(e_i * W / T) - 1. For equal weights, CTA g has the blocks [g * N / W, (g + 1) * N / W).
void stream_k(std::span<const SplitRow> rows, const PartitionSpec& spec, const Grid& grid,
              std::vector<SplitItem>* plan) {
  uint64_t total = 0;
  for (const SplitRow& row : rows)
    total += uint64_t{div_ceil(row.kv_entries, spec.tile)} * row.kv_entry_bytes;
  uint64_t before = 0;  // weight of the rows before this one
  for (uint32_t r = 0; r < rows.size(); ++r) {
    const uint64_t weight = rows[r].kv_entry_bytes, tiles = div_ceil(rows[r].kv_entries, spec.tile);
    for (uint64_t at = 0; at < tiles;) {
      const Wide end_weight = before + (at + 1) * weight;
      const auto cta = static_cast<uint64_t>((end_weight * grid.cta_count() + total - 1) / total - 1);
      // End of the CTA's blocks in this row: e <= (cta + 1) * T / W.
      const auto fraction_end = static_cast<uint64_t>(Wide{cta + 1} * total / grid.cta_count());
      const uint64_t end = std::min(tiles, std::max(at + 1, (fraction_end - before) / weight));
      plan->push_back({r, static_cast<uint32_t>(at) * spec.tile,
                       std::min(static_cast<uint32_t>(end) * spec.tile, rows[r].kv_entries),
                       static_cast<uint32_t>(cta)});
      at = end;
    }
    before += tiles * weight;
  }
}

// docs/design/methods/tangram.md#aot (4): a group gets round(ctas * its fraction of the work) splits, at
// least 1, which its members divide.
void aot(std::span<const SplitRow> rows, const PartitionSpec& spec, const Grid& grid,
         std::vector<SplitItem>* plan) {
  const uint32_t ctas = grid.cta_count() * spec.aot_waves;
  if (spec.aot_exact_grid) {
    std::vector<uint64_t> works;
    for (const SplitRow& row : rows) works.push_back(row.planned_work);
    const std::vector<uint32_t> splits = aot_splits(works, ctas, true);
    for (uint32_t r = 0; r < rows.size(); ++r) cut_row(r, rows[r].kv_entries, splits[r], spec.tile, plan);
    return;
  }
  Wide sum = 0;
  for (const SplitRow& row : rows) sum += row.planned_work;
  for (uint32_t r = 0; r < rows.size(); ++r) {
    const Wide work = Wide{rows[r].planned_work} * rows[r].group_rows;
    const Wide rounded = sum == 0 ? 1 : (2 * work * ctas + sum) / (2 * sum);
    const auto group = static_cast<uint32_t>(std::clamp<Wide>(rounded, 1, UINT32_MAX / 4));
    cut_row(r, rows[r].kv_entries, aot_member_splits(group, rows[r].group_rows), spec.tile, plan);
  }
}

}  // namespace

uint32_t piece_entries(uint32_t kv_entries, uint32_t splits, uint32_t tile) {
  return round_up(div_ceil(kv_entries, std::max(splits, 1u)), tile);
}

uint32_t grid_filling_splits(uint32_t rows, uint32_t ctas) { return std::max(1u, ctas / std::max(rows, 1u)); }

uint32_t flash_decoding_splits(uint32_t blocks, uint32_t sms, uint32_t tiles, uint32_t splits_max) {
  if (uint64_t{blocks} * 5 >= uint64_t{sms} * 4 || tiles <= 4) return 1;
  const uint32_t most = std::max(1u, std::min({splits_max, sms, tiles}));
  // Efficiency of s splits: waves / ceil(waves) with waves = blocks * s / sms, as used / slots.
  const auto used = [&](uint32_t s) { return uint64_t{blocks} * s; };
  const auto slots = [&](uint32_t s) { return div_ceil(used(s), uint64_t{sms}) * sms; };
  uint32_t best = 1;
  for (uint32_t s = 2; s <= most; ++s) {
    if (used(s) * slots(best) > used(best) * slots(s)) best = s;
  }
  for (uint32_t s = 1; s < best; ++s) {
    if (Wide{used(s)} * slots(best) * 20 >= Wide{used(best)} * slots(s) * 17) return s;  // 0.85
  }
  return best;
}

uint32_t flashinfer_chunk_pages(std::span<const SplitRow> rows, const Grid& grid) {
  uint32_t live = 0;
  for (const SplitRow& row : rows) live += row.kv_entries > 0;
  if (live >= grid.cta_count()) return 0;
  const uint32_t most = div_ceil(longest(rows), grid.page_tokens);
  uint32_t low = std::max(128 / grid.page_tokens, 1u), high = std::max(low, most);
  const auto fits = [&](uint32_t chunk) {
    uint64_t pieces = 0;
    for (const SplitRow& row : rows) pieces += div_ceil(div_ceil(row.kv_entries, grid.page_tokens), chunk);
    return pieces <= grid.cta_count();
  };
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (fits(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

void plan_partition(PartitionKind kind, const PartitionSpec& spec, const Grid& grid,
                    std::span<const SplitRow> rows, std::vector<SplitItem>* plan) {
  KVT_CHECK(spec.tile > 0 && grid.cta_count() > 0 && grid.page_tokens > 0);
  plan->clear();
  if (kind == PartitionKind::kStreamK) return stream_k(rows, spec, grid, plan);
  if (kind == PartitionKind::kAotFractions) return aot(rows, spec, grid, plan);
  if (kind == PartitionKind::kFlashInfer) {
    const uint32_t pages = flashinfer_chunk_pages(rows, grid);
    for (uint32_t r = 0; r < rows.size(); ++r) {
      if (pages == 0) {
        cut_row(r, rows[r].kv_entries, 1, 1, plan);
        continue;
      }
      const uint32_t chunk = pages * grid.page_tokens;
      cut_row(r, rows[r].kv_entries, div_ceil(rows[r].kv_entries, chunk), chunk, plan);
    }
    return;
  }
  uint32_t splits = spec.uniform_splits;
  if (splits == 0) splits = grid_filling_splits(static_cast<uint32_t>(rows.size()), grid.cta_count());
  if (kind == PartitionKind::kFlashDecoding) {
    splits = flash_decoding_splits(static_cast<uint32_t>(rows.size()), grid.sms,
                                   div_ceil(longest(rows), spec.tile), spec.flash_splits_max);
  }
  for (uint32_t r = 0; r < rows.size(); ++r) cut_row(r, rows[r].kv_entries, splits, spec.tile, plan);
}

}  // namespace kvtwin
