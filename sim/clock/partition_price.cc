#include "sim/clock/partition_price.h"

#include <algorithm>
#include <bit>

#include "engine/base/check.h"
#include "engine/base/units.h"

namespace kvtwin::sim {
namespace {

using Wide = unsigned __int128;

constexpr size_t kKnownMax = 1u << 16;

// Quarter octaves; each number below 8 is a class of its own.
struct Class {
  uint32_t middle = 0;
  uint32_t end = 0;  // one past its last number
};
Class class_of(uint32_t value) {
  if (value < 8) return {value, value + 1};
  const auto width = 1u << (std::bit_width(value) - 3);
  const uint32_t begin = value / width * width;
  return {begin + width / 2, begin + width < begin ? UINT32_MAX : begin + width};
}

// The load of each block so far.
class Blocks {
 public:
  explicit Blocks(uint32_t count) { loads_[0] = count; }

  // Assigns `count` splits, one after the other, each to the least loaded block.
  void give(uint64_t kv_entries, uint64_t count) {
    while (count > 0 && kv_entries > 0) {
      const auto least = loads_.begin();
      const uint64_t load = least->first, taken = std::min<uint64_t>(count, least->second);
      least->second -= taken;
      if (least->second == 0) loads_.erase(least);
      loads_[load + kv_entries] += taken;
      count -= taken;
    }
  }
  uint64_t most() const { return loads_.rbegin()->first; }

 private:
  std::map<uint64_t, uint64_t> loads_;  // load -> number of blocks
};

// A request's tokens: those of which every head retains all (sinks, window, decoded tokens), and the ranked
// ones.
struct Parts {
  uint32_t whole = 0;
  uint32_t ranked = 0;
  bool evenly = true;  // with each decoded token, `whole` grows by one and `ranked` does not
};
Parts parts_of(uint32_t context, uint32_t live, Fraction mean) {
  if (mean >= kWhole || live >= context) return {live, 0, true};
  // Less than the mean fraction of everything: the backend retained less than expected.
  const auto retained = static_cast<uint64_t>((Wide{mean} * context) >> 32);
  if (live <= retained)
    return {0, static_cast<uint32_t>((Wide{live} << 32) / std::max<Fraction>(mean, 1)), false};
  // live = whole + mean * ranked, context = whole + ranked.
  const auto ranked = static_cast<uint64_t>((Wide{context - live} << 32) / (kWhole - mean));
  const auto most = static_cast<uint32_t>(std::min<uint64_t>(ranked, context));
  return {context - most, most, ranked <= context};
}

uint32_t kv_entries_of(const PartitionPrice::RequestClass& request, Fraction fraction) {
  return request.whole + static_cast<uint32_t>((Wide{fraction} * request.ranked) >> 32);
}

// For each head in [begin, begin + heads): number of heads in that range that belong to the same group.
std::vector<uint32_t> members_of(const std::vector<uint32_t>& groups, size_t begin, size_t heads) {
  std::vector<uint32_t> out(heads, 1);
  if (groups.empty()) return out;
  for (size_t h = 0; h < heads; ++h) {
    const auto first = groups.begin() + static_cast<ptrdiff_t>(begin);
    out[h] =
        static_cast<uint32_t>(std::count(first, first + static_cast<ptrdiff_t>(heads), groups[begin + h]));
  }
  return out;
}

}  // namespace

PartitionPrice::PartitionPrice(const PartitionPriceSpec& spec) : spec_(spec) {
  const LayoutSpec& layout = spec.layout;
  KVT_CHECK(spec.held.size() == layout.heads());
  KVT_CHECK(spec.planned.empty() || spec.planned.size() == layout.heads());
  Wide sum = 0;
  for (const Fraction fraction : spec.held) sum += fraction;
  held_mean_ = static_cast<Fraction>(sum / layout.heads());
  const std::vector<Fraction>& planned = spec.planned.empty() ? spec.held : spec.planned;
  std::map<std::vector<Slice>, uint32_t> alike;
  const uint32_t gpus = std::min(spec.gpus, layout.kv_heads), heads = layout.kv_heads / gpus;
  for (uint32_t l = 0; l < layout.layers; ++l) {
    std::vector<Slice> slices(gpus);
    for (uint32_t gpu = 0; gpu < gpus; ++gpu) {
      const auto begin = static_cast<ptrdiff_t>(l * layout.kv_heads + gpu * heads);
      slices[gpu].held.assign(spec.held.begin() + begin, spec.held.begin() + begin + heads);
      slices[gpu].planned.assign(planned.begin() + begin, planned.begin() + begin + heads);
      slices[gpu].members = members_of(spec.groups, static_cast<size_t>(begin), heads);
    }
    ++alike[slices];
  }
  for (auto& [slices, times] : alike) layers_.push_back({slices, times});
}

PartitionPrice::Answer PartitionPrice::ask(std::span<const DecodeLength> requests) {
  Answer answer;
  asked_.clear();
  for (const DecodeLength& request : requests) {
    const Parts parts = parts_of(request.context + 1, request.live + 1, held_mean_);
    const Class whole = class_of(parts.whole);
    asked_.push_back({whole.middle, class_of(parts.ranked).middle, 1});
    answer.steps = std::min(answer.steps, parts.evenly && request.grows ? whole.end - parts.whole : 1);
  }
  if (asked_.empty()) return answer;
  std::sort(asked_.begin(), asked_.end());
  size_t classes = 0;
  for (size_t i = 1; i < asked_.size(); ++i) {
    if (asked_[i].whole == asked_[classes].whole && asked_[i].ranked == asked_[classes].ranked) {
      ++asked_[classes].requests;
    } else {
      asked_[++classes] = asked_[i];
    }
  }
  asked_.resize(classes + 1);
  if (const auto known = known_.find(asked_); known != known_.end()) {
    answer.slowdown_q16 = known->second;
    return answer;
  }
  answer.slowdown_q16 = slowdown_q16(asked_);
  if (known_.size() >= kKnownMax) known_.clear();
  known_.emplace(asked_, answer.slowdown_q16);
  return answer;
}

uint64_t PartitionPrice::slowdown_q16(std::span<const RequestClass> requests) const {
  Wide slowest = 0, kv_entries = 0;
  for (const Layer& layer : layers_) {
    uint64_t most = 0, all = 0;
    for (const Slice& slice : layer.gpus) most = std::max(most, slowest_block(slice, requests, &all));
    slowest += Wide{most} * layer.times * layer.gpus.size() * spec_.grid.cta_count();
    kv_entries += Wide{all} * layer.times;
  }
  if (kv_entries == 0) return uint64_t{1} << 16;
  return std::max<uint64_t>(uint64_t{1} << 16, static_cast<uint64_t>((slowest << 16) / kv_entries));
}

struct PartitionPrice::Rows {
  uint32_t kv_entries = 0;
  uint32_t rows = 0;
  uint32_t members = 1;
  uint64_t planned = 0;
};

std::vector<PartitionPrice::Rows> PartitionPrice::rows_of(const Slice& slice,
                                                          std::span<const RequestClass> requests) const {
  std::vector<Rows> rows;
  for (const RequestClass& request : requests) {
    // Tails that decode has added enter the plan once they matter (docs/design/methods/tangram.md#aot, point
    // 5).
    uint64_t lengths = 0;
    for (const Fraction fraction : slice.held) lengths += kv_entries_of(request, fraction);
    const bool stale =
        aot_fractions_are_stale(lengths, static_cast<uint32_t>(slice.held.size()), request.whole);
    for (size_t h = 0; h < slice.held.size(); ++h) {
      const auto planned = static_cast<uint64_t>((Wide{slice.planned[h]} * request.ranked) >> 32);
      rows.push_back({kv_entries_of(request, slice.held[h]), request.requests, slice.members[h],
                      planned + (stale ? request.whole : 0)});
    }
  }
  return rows;
}

// Length of the splits of each of `rows`.
std::vector<uint32_t> PartitionPrice::pieces_of(const std::vector<Rows>& rows) const {
  const PartitionSpec& spec = spec_.partition;
  const uint32_t ctas = spec_.grid.cta_count();
  uint32_t count = 0, longest = 0, chunk = 0;
  Wide planned = 0;
  for (const Rows& row : rows) {
    count += row.rows;
    longest = std::max(longest, row.kv_entries);
    planned += Wide{row.planned} * row.rows;
  }
  uint32_t splits = spec.uniform_splits > 0 ? spec.uniform_splits : grid_filling_splits(count, ctas);
  if (spec_.kind == PartitionKind::kFlashDecoding) {
    splits =
        flash_decoding_splits(count, spec_.grid.sms, div_ceil(longest, spec.tile), spec.flash_splits_max);
  } else if (spec_.kind == PartitionKind::kFlashInfer) {
    std::vector<SplitRow> each;
    for (const Rows& row : rows) each.resize(each.size() + row.rows, {.kv_entries = row.kv_entries});
    chunk = flashinfer_chunk_pages(each, spec_.grid) * spec_.grid.page_tokens;
  }
  std::vector<uint32_t> exact;  // splits by row, equal rows one after the other
  if (spec_.kind == PartitionKind::kAotFractions && spec.aot_exact_grid) {
    std::vector<uint64_t> works;
    for (const Rows& row : rows) works.resize(works.size() + row.rows, row.planned);
    exact = aot_splits(works, ctas * spec.aot_waves, true);
  }
  std::vector<uint32_t> pieces;
  size_t first = 0;
  for (const Rows& row : rows) {
    if (!exact.empty()) {  // remainders may give equal rows unequal splits: the smallest number counts
      const auto of_row = exact.begin() + static_cast<ptrdiff_t>(first);
      splits = *std::min_element(of_row, of_row + row.rows);
      first += row.rows;
      pieces.push_back(std::max(piece_entries(row.kv_entries, splits, spec.tile), 1u));
      continue;
    }
    if (spec_.kind == PartitionKind::kFlashInfer) {
      pieces.push_back(chunk > 0 ? chunk : std::max(row.kv_entries, 1u));
      continue;
    }
    if (spec_.kind == PartitionKind::kAotFractions) {
      const Wide work = Wide{row.planned} * row.members;
      const Wide rounded = planned == 0 ? 1 : (2 * work * ctas * spec.aot_waves + planned) / (2 * planned);
      splits =
          aot_member_splits(static_cast<uint32_t>(std::clamp<Wide>(rounded, 1, UINT32_MAX / 4)), row.members);
    }
    pieces.push_back(std::max(piece_entries(row.kv_entries, splits, spec.tile), 1u));
  }
  return pieces;
}

// KV entries of the most loaded block; all entries of the slice are added to *kv_entries.
uint64_t PartitionPrice::slowest_block(const Slice& slice, std::span<const RequestClass> requests,
                                       uint64_t* kv_entries) const {
  const std::vector<Rows> rows = rows_of(slice, requests);
  const uint32_t ctas = spec_.grid.cta_count(), tile = spec_.partition.tile;
  uint64_t all = 0, tiles = 0;
  for (const Rows& row : rows) {
    all += uint64_t{row.kv_entries} * row.rows;
    tiles += uint64_t{div_ceil(row.kv_entries, tile)} * row.rows;
  }
  *kv_entries += all;
  if (spec_.kind == PartitionKind::kStreamK) return std::min(div_ceil(tiles, uint64_t{ctas}) * tile, all);
  const std::vector<uint32_t> pieces = pieces_of(rows);
  Blocks blocks(ctas);
  for (size_t i = 0; i < rows.size(); ++i) {
    blocks.give(pieces[i], uint64_t{rows[i].kv_entries / pieces[i]} * rows[i].rows);
    blocks.give(rows[i].kv_entries % pieces[i], rows[i].rows);
  }
  return blocks.most();
}

}  // namespace kvtwin::sim
