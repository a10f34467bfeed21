#include "engine/cuda/dual_cache.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "engine/base/check.h"

namespace kvtwin::cuda {
namespace {

// Adds a cell to the last span, if it goes on there.
void add_cell(std::vector<CellSpan>* spans, uint32_t source, uint32_t target, size_t first_span) {
  if (spans->size() > first_span) {
    CellSpan& last = spans->back();
    const bool goes_on = last.source + last.count == source && last.target + last.count == target;
    if (goes_on && last.count < kStagedPage) {  // short ones: each has a CTA of its own
      ++last.count;
      return;
    }
  }
  spans->push_back({source, target, 1, kBothSides});
}

}  // namespace

Result<OwnedCache> DualCache::make(const DualOptions& options, const KvMemory& memory, const LlmSpec* llm) {
  KVT_CHECK(memory.pages_host == 0 && options.pages_int2 <= memory.pages_gpu);
  std::unique_ptr<DualCache> out(new DualCache(options, memory, llm));
  const PageShape shape{memory.page_tokens, llm->head_dim, options.group};
  const struct {
    Format format;
    uint32_t pages;
  } rows[] = {{Format::kInt2, options.pages_int2}, {Format::kInt4, memory.pages_gpu - options.pages_int2}};
  for (size_t i = 0; i < 2; ++i) {
    PackedPages& pool = out->pools_[i];
    pool.format = rows[i].format, pool.shape = shape;
    Result<DevicePages> pages = DevicePages::make_packed(page_bytes(pool.format, shape) * llm->kv_heads,
                                                         llm->layers, rows[i].pages, 0);
    if (!pages) return tl::unexpected<Mistake>(pages.error());
    pool.pages = std::move(*pages);
  }
  Result<StagedCells> staged =
      StagedCells::make(llm, uint64_t{memory.pages_gpu} * memory.page_tokens, memory.rows_max, memory.poison);
  if (!staged) return tl::unexpected<Mistake>(staged.error());
  out->staged_ = std::move(*staged);
  out->staged_.spans().resize(2);
  out->waiting_ = ExactCells(*llm, memory.page_tokens);
  if (options.fused) {
    Result<PackedAttention> fused =
        PackedAttention::make(*llm, out->pools_, memory.rows_max, memory.pages_gpu);
    if (!fused) return tl::unexpected<Mistake>(fused.error());
    out->fused_ = std::move(*fused);
  }
  return OwnedCache(out.release());
}

uint32_t DualCache::cell(uint32_t page, uint32_t slot) const {
  return cells_.is_int2(page) ? pools_[0].cell(page, slot) : pools_[1].cell(page - options_.pages_int2, slot);
}

uint32_t DualCache::waiting_cell(const Share& share, uint32_t slot) const {
  return (share.waiting_page - memory_.pages_gpu) * memory_.page_tokens + slot;
}

void DualCache::poison(PageId page, cudaStream_t stream) {
  const bool narrow = cells_.is_int2(raw(page));
  pools_[narrow ? 0 : 1].pages.poison(PageId{raw(page) - (narrow ? 0 : options_.pages_int2)}, stream);
}

void DualCache::begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
                      const StepStream& on, StepRows* rows) {
  KVT_CHECK(launch.compressions.empty());  // of other layouts than this one
  if (offset == 0 && !launch.ageings.empty()) age(launch.ageings, on.stream);
  taken_.clear();
  cells_.place(launch, offset, entries, &shares_, &taken_);
  for (const PageId page : taken_) {
    if (memory_.poison) poison(page, on.stream);
  }
  staged_.clear();
  fused_.clear();
  for (const Share& share : shares_) add_share(share, rows);
  staged_.send(on.stream);
  fused_.send(on.stream);
  waiting_.reserve(cells_.waiting_pages());
}

// All layers at once: what the step itself packs may lie in pages that this empties.
void DualCache::age(std::span<const CellAgeing> ageings, cudaStream_t stream) {
  staged_.clear();
  std::vector<CellSpan> unpacked, packed;
  for (const cpu::DualCells::Aged& aged : cells_.age(ageings)) {
    if (memory_.poison) poison(aged.target, stream);
    const uint32_t base = staged_.open(memory_.page_tokens);
    const size_t first = unpacked.size();
    for (uint32_t i = 0; i < aged.from.size(); ++i)
      add_cell(&unpacked, cell(aged.from[i].page, aged.from[i].slot), base + i, first);
    packed.push_back({base, cell(raw(aged.target), 0), memory_.page_tokens, kBothSides});
  }
  staged_.grow_pages();
  ageing_.clear();
  const ListAt<CellSpan> unpacked_at = ageing_.add(unpacked), packed_at = ageing_.add(packed);
  ageing_.send(stream);
  for (uint32_t layer = 0; layer < llm_.layers; ++layer) {
    staged_.unpack(pools_[1], layer, ageing_.at(unpacked_at), unpacked_at.count, stream);
    staged_.pack(pools_[0], layer, ageing_.at(packed_at), packed_at.count, stream);
  }
}

void DualCache::add_share(const Share& share, StepRows* rows) {
  if (!share.chunk && fused_.ready() && add_fused(share)) {
    const uint32_t at = staged_.open(1);
    StagedCells::add_rows(llm_, at, share.context, 1, rows);
    span_actions(share, at - share.context);
    rows->decode_cells += share.context + 1;
    return;
  }
  const uint32_t base = staged_.open(share.context + share.tokens);
  StagedCells::add_rows(llm_, base + share.context, share.context, share.tokens, rows);
  staged_.add_reads(base, share.row, share.context, share.tokens, rows);
  span_history(share, base);
  span_actions(share, base);
}

// If the call's cells are whole pages but for the last one of each pool, which they fill from its start.
bool DualCache::add_fused(const Share& share) {
  for (const uint32_t page : seen_) filled_[page] = {};
  seen_.clear();
  for (const Place& place : share.history) {
    if (place.page >= memory_.pages_gpu) return false;  // it waits
    Filled& page = filled_[place.page];
    if (page.cells++ == 0) seen_.push_back(place.page);
    page.end = std::max(page.end, place.slot + 1);
  }
  std::vector<uint32_t> pages[2];
  uint32_t tokens[2] = {}, partial[2] = {UINT32_MAX, UINT32_MAX};
  for (const uint32_t page : seen_) {
    const uint32_t pool = pool_of(page), count = filled_[page].cells;
    if (filled_[page].end != count) return false;
    tokens[pool] += count;
    const uint32_t number = pool == 0 ? page : page - options_.pages_int2;
    if (count == memory_.page_tokens) {
      pages[pool].push_back(number);
    } else if (partial[pool] != UINT32_MAX) {
      return false;
    } else {
      partial[pool] = number;
    }
  }
  PackedAttention::Part parts[2];
  for (uint32_t pool = 0; pool < 2; ++pool) {
    if (partial[pool] != UINT32_MAX) pages[pool].push_back(partial[pool]);
    parts[pool] = {*PackedAttention::part_of(pools_[pool].format), pages[pool], tokens[pool]};
  }
  fused_.add(share.row, parts);
  return true;
}

void DualCache::span_history(const Share& share, uint32_t base) {
  const size_t first[] = {staged_.spans()[0].unpacked.size(), staged_.spans()[1].unpacked.size()};
  const size_t first_exact = staged_.spans()[0].from_exact.size();
  for (uint32_t position = 0; position < share.history.size(); ++position) {
    const Place& place = share.history[position];
    if (place.page >= memory_.pages_gpu) {
      add_cell(&staged_.spans()[0].from_exact, waiting_cell(share, place.slot), base + position, first_exact);
      continue;
    }
    const uint32_t pool = pool_of(place.page);
    add_cell(&staged_.spans()[pool].unpacked, cell(place.page, place.slot), base + position, first[pool]);
  }
}

// Every cell of the call that is not packed yet is staged, so it does not matter whether it waited.
void DualCache::span_actions(const Share& share, uint32_t base) {
  using Kind = cpu::DualCells::Action::Kind;
  StagedSpans& int2 = staged_.spans()[0];
  StagedSpans& int4 = staged_.spans()[1];
  const size_t first_int4 = int4.packed.size();
  std::map<uint32_t, uint32_t> waits;  // positions, by slot: the last to come there
  for (const cpu::DualCells::Action& action : share.actions) {
    switch (action.kind) {
      case Kind::kStage:
        waits[action.slot] = action.position;
        break;
      case Kind::kPut:
      case Kind::kMove:
        add_cell(&int4.packed, base + action.position, cell(raw(action.page), action.slot), first_int4);
        break;
      case Kind::kPack: {
        // Keys are packed from cells that lie side by side.
        const uint32_t side_by_side = staged_.open(memory_.page_tokens);
        const size_t first = int2.gathered.size();
        for (uint32_t slot = 0; slot < memory_.page_tokens; ++slot)
          add_cell(&int2.gathered, base + share.packed[action.position + slot], side_by_side + slot, first);
        int2.packed.push_back({side_by_side, cell(raw(action.page), 0), memory_.page_tokens, kBothSides});
        break;
      }
    }
  }
  // Also of those that were placed in this very step: nobody reads them there.
  const size_t first_wait = int2.to_exact.size();
  for (const auto& [slot, position] : waits)
    add_cell(&int2.to_exact, base + position, waiting_cell(share, slot), first_wait);
}

void DualCache::plan(const DeviceRows& rows, const StepStream& on) {
  staged_.plan(rows, on);
  fused_.plan(on);
}

bool DualCache::repeats(StepForm* form) const {
  const DeviceRows& rows = form->rows;
  return rows.decodes_count == 0 && rows.chunks_count == 0 && rows.other_rows == 0 && fused_.ready() &&
         staged_.repeats() && fused_.repeats();
}

void DualCache::attend(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows,
                       const StepStream& on) {
  staged_.stage(layer, tensors, rows, pools_, &waiting_, on);
  staged_.attend(layer, tensors, rows, on);
  fused_.attend(layer, tensors, pools_, on);
  staged_.keep(layer, waiting_, on.stream);
}

void DualCache::copy(PageId, PageId, cudaStream_t) { KVT_CHECK(!"pages of two formats are not copied"); }

void DualCache::warm_up(uint32_t size, const StepStream& on, StepRows* rows) {
  fused_.clear();
  staged_.warm_up(size, on.stream, rows);
  waiting_.reserve(1);
}

}  // namespace kvtwin::cuda
