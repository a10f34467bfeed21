#include "engine/cuda/packed/mixed_precision_cache.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "engine/base/check.h"

namespace kvtwin::cuda {
namespace {

constexpr size_t kDecodePool = 1;  // of pools_: int4, where decoded KV entries go

// Adds a KV entry to the last span, if it goes on there.
void add_cell(std::vector<KvEntrySpan>* spans, uint32_t source, uint32_t target, size_t first_span) {
  if (spans->size() > first_span) {
    KvEntrySpan& last = spans->back();
    const bool goes_on = last.source + last.count == source && last.target + last.count == target;
    if (goes_on && last.count < kStagedPage) {  // short ones: each has a CTA of its own
      ++last.count;
      return;
    }
  }
  spans->push_back({source, target, 1, kBothSides});
}

}  // namespace

Result<OwnedCache> MixedPrecisionCache::make(const MixedPrecisionOptions& options, const KvMemory& memory,
                                             const LlmSpec* llm) {
  KVT_CHECK(options.pages_int2 <= memory.pages_gpu);
  std::unique_ptr<MixedPrecisionCache> out(new MixedPrecisionCache(options, memory, llm));
  const PageShape shape{memory.page_tokens, llm->head_dim, options.group};
  const struct {
    Format format;
    uint32_t pages, pages_host;
  } rows[] = {{Format::kInt2, options.pages_int2, 0},
              {Format::kInt4, memory.pages_gpu - options.pages_int2, memory.pages_host}};
  for (size_t i = 0; i < 2; ++i) {
    PackedPages& pool = out->pools_[i];
    pool.format = rows[i].format, pool.shape = shape;
    Result<DevicePages> pages = DevicePages::make_packed(page_bytes(pool.format, shape) * llm->kv_heads,
                                                         llm->layers, rows[i].pages, rows[i].pages_host);
    if (!pages) return tl::unexpected<Error>(pages.error());
    pool.pages = std::move(*pages);
  }
  out->pools_[0].pages.share_host(out->pools_[1].pages);
  out->waiting_ = ExactEntries(*llm, memory.page_tokens);
  if (options.fused) {
    Result<PackedAttention> fused =
        PackedAttention::make(*llm, out->pools_, memory.rows_max, memory.pages_gpu);
    if (!fused) return tl::unexpected<Error>(fused.error());
    out->fused_ = std::move(*fused);
  }
  Result<StagedEntries> staged =
      StagedEntries::make(llm, unpacked_expected(*llm, memory, out->fused_.ready(), memory.page_tokens),
                          memory.rows_max, memory.poison);
  if (!staged) return tl::unexpected<Error>(staged.error());
  out->staged_ = std::move(*staged);
  out->staged_.spans().resize(2);
  return OwnedCache(out.release());
}

uint32_t MixedPrecisionCache::kv_entry(uint32_t page, uint32_t slot) const {
  return kv_entries_.is_int2(page) ? pools_[0].kv_entry(page, slot)
                                   : pools_[1].kv_entry(page - options_.pages_int2, slot);
}

uint32_t MixedPrecisionCache::waiting_kv_entry(const RequestPart& request_part, uint32_t slot) const {
  return (request_part.waiting_page - memory_.pages_gpu) * memory_.page_tokens + slot;
}

PageId MixedPrecisionCache::page_in(uint32_t pool, PageId page) const {
  const bool on_host = raw(page) >= memory_.pages_gpu;
  const uint32_t others = pool == 0 ? memory_.pages_gpu - options_.pages_int2 : options_.pages_int2;
  return PageId{raw(page) - (on_host || pool == 1 ? others : 0)};
}

void MixedPrecisionCache::poison(PageId page, cudaStream_t stream) {
  const uint32_t pool = pool_of(raw(page));
  pools_[pool].pages.poison(page_in(pool, page), stream);
}

void MixedPrecisionCache::begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
                                const StepStream& on, StepRows* rows) {
  KVT_CHECK(launch.compressions.empty());  // of other layouts than this one
  aged_ = offset == 0 && !launch.requantisations.empty();
  if (aged_) age(launch.requantisations, on);
  taken_.clear();
  kv_entries_.place(launch, offset, entries, &request_parts_, &taken_);
  for (const PageId page : taken_) {
    if (memory_.poison) poison(page, on.stream);
  }
  staged_.clear();
  fused_.clear();
  bool decodes = true;
  for (const RequestPart& request_part : request_parts_) {
    add_fraction(request_part, rows);
    decodes = decodes && !request_part.chunk;
  }
  if (decodes && fused_.ready())
    add_packed_padding(launch.tokens_padded, kDecodePool, &staged_, &fused_, rows);
  staged_.send(on);
  fused_.send(on);
  waiting_.reserve(kv_entries_.waiting_pages());
}

// All layers at once: what the step itself packs may lie in pages that this empties.
void MixedPrecisionCache::age(std::span<const Requantisation> requantisations, const StepStream& on) {
  staged_.clear();
  std::vector<KvEntrySpan> unpacked, packed;
  for (const cpu::MixedPrecisionEntries::Aged& aged : kv_entries_.age(requantisations)) {
    if (memory_.poison) poison(aged.target, on.stream);
    const uint32_t base = staged_.open(memory_.page_tokens);
    const size_t first = unpacked.size();
    for (uint32_t i = 0; i < aged.from.size(); ++i)
      add_cell(&unpacked, kv_entry(aged.from[i].page, aged.from[i].slot), base + i, first);
    packed.push_back({base, kv_entry(raw(aged.target), 0), memory_.page_tokens, kBothSides});
  }
  staged_.grow_pages();
  ageing_.clear();
  const ListAt<KvEntrySpan> unpacked_at = ageing_.add(unpacked), packed_at = ageing_.add(packed);
  on.timer->begin(Operation::kUpload);
  ageing_.send(on.stream);
  for (uint32_t layer = 0; layer < llm_.layers; ++layer) {
    on.timer->begin(Operation::kRequantise, layer);
    staged_.unpack(pools_[1], layer, ageing_.at(unpacked_at), unpacked_at.count, on.stream);
    staged_.pack(pools_[0], layer, ageing_.at(packed_at), packed_at.count, on.stream);
  }
}

void MixedPrecisionCache::add_fraction(const RequestPart& request_part, StepRows* rows) {
  if (!request_part.chunk && fused_.ready() && add_fused(request_part)) {
    const uint32_t at = staged_.open(1);
    StagedEntries::add_rows(llm_, at, request_part.context, 1, rows);
    span_actions(request_part, at - request_part.context);
    rows->decode_entries += request_part.context + 1;
    return;
  }
  const uint32_t base = staged_.open(request_part.context + request_part.tokens);
  StagedEntries::add_rows(llm_, base + request_part.context, request_part.context, request_part.tokens, rows);
  staged_.add_reads(base, request_part.row, request_part.context, request_part.tokens, rows);
  span_history(request_part, base);
  span_actions(request_part, base);
}

// If the request's KV entries are whole pages but for the last one of each pool, which they fill from its
// start.
bool MixedPrecisionCache::add_fused(const RequestPart& request_part) {
  for (const uint32_t page : seen_) filled_[page] = {};
  seen_.clear();
  for (const Place& place : request_part.history) {
    if (place.page >= memory_.pages_gpu) return false;  // it waits
    Filled& page = filled_[place.page];
    if (page.kv_entries++ == 0) seen_.push_back(place.page);
    page.end = std::max(page.end, place.slot + 1);
  }
  std::vector<uint32_t> pages[2];
  uint32_t tokens[2] = {}, partial[2] = {UINT32_MAX, UINT32_MAX};
  for (const uint32_t page : seen_) {
    const uint32_t pool = pool_of(page), count = filled_[page].kv_entries;
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
  fused_.add(request_part.row, parts);
  return true;
}

void MixedPrecisionCache::span_history(const RequestPart& request_part, uint32_t base) {
  const size_t first[] = {staged_.spans()[0].unpacked.size(), staged_.spans()[1].unpacked.size()};
  const size_t first_exact = staged_.spans()[0].from_exact.size();
  for (uint32_t position = 0; position < request_part.history.size(); ++position) {
    const Place& place = request_part.history[position];
    if (place.page >= memory_.pages_gpu) {
      add_cell(&staged_.spans()[0].from_exact, waiting_kv_entry(request_part, place.slot), base + position,
               first_exact);
      continue;
    }
    const uint32_t pool = pool_of(place.page);
    add_cell(&staged_.spans()[pool].unpacked, kv_entry(place.page, place.slot), base + position, first[pool]);
  }
}

// Every KV entry of the request that is not packed yet is staged, so it does not matter whether it waited.
void MixedPrecisionCache::span_actions(const RequestPart& request_part, uint32_t base) {
  using Kind = cpu::MixedPrecisionEntries::Action::Kind;
  StagedSpans& int2 = staged_.spans()[0];
  StagedSpans& int4 = staged_.spans()[1];
  const size_t first_int4 = int4.packed.size();
  std::map<uint32_t, uint32_t> waits;  // positions, by slot: the last to come there
  for (const cpu::MixedPrecisionEntries::Action& action : request_part.actions) {
    switch (action.kind) {
      case Kind::kStage:
        waits[action.slot] = action.position;
        break;
      case Kind::kPut:
      case Kind::kMove:
        add_cell(&int4.packed, base + action.position, kv_entry(raw(action.page), action.slot), first_int4);
        break;
      case Kind::kPack: {
        // Keys are packed from KV entries that lie side by side.
        const uint32_t side_by_side = staged_.open(memory_.page_tokens);
        const size_t first = int2.gathered.size();
        for (uint32_t slot = 0; slot < memory_.page_tokens; ++slot)
          add_cell(&int2.gathered, base + request_part.packed[action.position + slot], side_by_side + slot,
                   first);
        int2.packed.push_back({side_by_side, kv_entry(raw(action.page), 0), memory_.page_tokens, kBothSides});
        break;
      }
    }
  }
  // Also of those placed in this step: they are not read there.
  const size_t first_wait = int2.to_exact.size();
  for (const auto& [slot, position] : waits)
    add_cell(&int2.to_exact, base + position, waiting_kv_entry(request_part, slot), first_wait);
}

void MixedPrecisionCache::plan(const DeviceRows& rows, const StepStream& on) {
  staged_.plan(rows, on);
  fused_.plan(on);
}

bool MixedPrecisionCache::repeats(StepGraphKey* graph_key) const {
  const DeviceRows& rows = graph_key->rows;
  staged_.add_to(graph_key);
  return rows.decodes_count == 0 && rows.chunks_count == 0 && rows.other_rows == 0 && fused_.ready() &&
         staged_.repeats() && fused_.repeats();
}

StepListSpec MixedPrecisionCache::listed(const DeviceRows& rows) const {
  return {llm_.layers,
          false,
          {.rows = rows_present(rows),
           .uploads = fused_.has_rows() ? 3u : 2u,  // the step's rows, spans, rows that read packed pages
           .packed_decodes = fused_.has_rows(),
           .keeps = staged_.keeps(),
           .requantises = aged_}};
}

void MixedPrecisionCache::attend(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows,
                                 const StepStream& on) {
  const StepList list = list_attention(listed(rows), layer);
  for (const ListedOperation& one : list.operations()) {
    on.timer->begin(one);
    if (one.kind == Operation::kPackedAttention) {
      fused_.attend(layer, tensors, pools_, on.stream);
    } else {
      staged_.start(one, tensors, rows, pools_, &waiting_, on.stream);
    }
  }
}

void MixedPrecisionCache::copy(PageId source, PageId target, cudaStream_t stream) {
  const uint32_t pool = pool_of(std::min(raw(source), raw(target)));  // of the page on the GPU
  pools_[pool].pages.copy(page_in(pool, source), page_in(pool, target), stream);
}

void MixedPrecisionCache::fill_up(uint32_t, uint32_t size, const StepStream& on, StepRows* rows) {
  fill_up_packed(size, kDecodePool, &staged_, &fused_, on, rows);
}

void MixedPrecisionCache::warm_up(uint32_t size, const StepStream& on, StepRows* rows) {
  fused_.clear();
  staged_.warm_up(size, on, rows);
  waiting_.reserve(1);
}

}  // namespace kvtwin::cuda
