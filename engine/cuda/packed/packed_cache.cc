#include "engine/cuda/packed/packed_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/packed/mixed_precision_cache.h"

namespace kvtwin::cuda {

std::optional<std::string> check_packed(Format format, uint32_t group, const LlmSpec& llm,
                                        uint32_t page_tokens) {
  const PageShape shape{page_tokens, llm.head_dim, group};
  if (!page_shape_is_possible(shape, format))
    return fmt::format(
        "{} pages of {} tokens and heads of {} have no groups of {}; 32 tokens and heads of 64 or "
        "128 do",
        format_name(format), page_tokens, llm.head_dim, group);
  return std::nullopt;
}

Result<OwnedCache> make_packed(const PackedOptions& options, const KvMemory& memory, const LlmSpec* llm) {
  return PackedCache::make(options, memory, llm);
}
Result<OwnedCache> make_mixed_precision(const MixedPrecisionOptions& options, const KvMemory& memory,
                                        const LlmSpec* llm) {
  return MixedPrecisionCache::make(options, memory, llm);
}

Result<OwnedCache> PackedCache::make(const PackedOptions& options, const KvMemory& memory,
                                     const LlmSpec* llm) {
  std::unique_ptr<PackedCache> out(new PackedCache(options, memory, llm));
  out->pool_.format = options.format;
  out->pool_.shape = {memory.page_tokens, llm->head_dim, options.group};
  Result<DevicePages> pages =
      DevicePages::make_packed(page_bytes(options.format, out->pool_.shape) * llm->kv_heads, llm->layers,
                               memory.pages_gpu, memory.pages_host);
  if (!pages) return tl::unexpected<Error>(pages.error());
  out->pool_.pages = std::move(*pages);
  if (options.fused) {
    Result<PackedAttention> fused =
        PackedAttention::make(*llm, {&out->pool_, 1}, memory.rows_max, memory.pages_gpu, out->kivi());
    if (!fused) return tl::unexpected<Error>(fused.error());
    out->fused_ = std::move(*fused);
  }
  Result<StagedEntries> staged = StagedEntries::make(
      llm, unpacked_expected(*llm, memory, out->fused_.ready(), 2 * options.residual_tokens), memory.rows_max,
      memory.poison);
  if (!staged) return tl::unexpected<Error>(staged.error());
  out->staged_ = std::move(*staged);
  out->staged_.spans().resize(1);
  if (out->kivi()) {
    out->exact_ = ExactEntries(*llm, options.residual_tokens);
  }
  return OwnedCache(out.release());
}

void PackedCache::begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
                        const StepStream& on, StepRows* rows) {
  KVT_CHECK(launch.compressions.empty());  // compressions belong to other layouts
  take_pages(launch, offset, on.stream);
  staged_.clear();
  fused_.clear();
  uint32_t row = 0;
  for (const PlanEntry& entry : entries) {
    KVT_CHECK(entry.kind == EntryKind::kChunk || entry.kind == EntryKind::kDecode);
    add_entry(entry, row, rows);
    row += entry.tokens;
  }
  const bool decodes = std::all_of(entries.begin(), entries.end(),
                                   [](const PlanEntry& entry) { return entry.kind == EntryKind::kDecode; });
  if (decodes && fused_.ready()) add_packed_padding(launch.tokens_padded, 0, &staged_, &fused_, rows);
  if (kivi()) even_out(decodes, rows->positions.size());
  staged_.send(on);
  fused_.send(on);
  if (kivi()) exact_.reserve(slots_);
}

void PackedCache::fill_up(uint32_t, uint32_t size, const StepStream& on, StepRows* rows) {
  fill_up_packed(size, 0, &staged_, &fused_, on, rows);
}

void PackedCache::take_pages(const LaunchStep& launch, uint32_t offset, cudaStream_t stream) {
  if (offset == 0) {
    for (const PlanEntry& entry : launch.entries) {
      if (!entry.first) continue;
      const auto [request, fresh] = requests_.try_emplace(entry.request);
      const uint32_t slot = fresh && kivi() ? take_slot() : request->second.slot;
      request->second = {{}, entry.context, entry.context, slot};
    }
    for (const PrefixHit& prefix_hit : launch.prefix_hits) {
      for (const PageId page : prefix_hit.pages) requests_.at(prefix_hit.request).pages.push_back(raw(page));
    }
  }
  for (const PageAllocation& allocation : launch.allocations) {
    if (allocation.offset != offset) continue;
    KVT_CHECK(raw(allocation.page) < memory_.pages_gpu);
    if (memory_.poison) pool_.pages.poison(allocation.page, stream);
    requests_.at(launch.entries[allocation.entry].request).pages.push_back(raw(allocation.page));
  }
}

uint32_t PackedCache::take_slot() {
  if (free_slots_.empty()) free_slots_.push_back(slots_++);
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

void PackedCache::add_entry(const PlanEntry& entry, uint32_t row, StepRows* rows) {
  Request& request = requests_.at(entry.request);
  const bool decode = entry.kind == EntryKind::kDecode;
  const uint32_t context = entry.context, end = context + entry.tokens;
  KVT_CHECK(end <= uint64_t{request.pages.size()} * memory_.page_tokens);
  if (decode && fused_.ready())
    return kivi() ? add_fused_kivi(entry, row, &request, rows) : add_fused(request, entry, row, rows);
  const uint32_t base = staged_.open(end);
  StagedEntries::add_rows(llm_, base + context, context, entry.tokens, rows);
  staged_.add_reads(base, row, context, entry.tokens, rows);
  if (kivi()) return add_kivi(entry, base, &request);
  span_pages(request, context, end, base, kBothSides, true);
  span_pages(request, 0, decode ? end : context, base, kBothSides, false);
}

void PackedCache::add_fused(const Request& request, const PlanEntry& entry, uint32_t row, StepRows* rows) {
  KVT_CHECK(entry.tokens == 1);
  const uint32_t at = staged_.open(1), kv_entries = entry.context + 1, page = memory_.page_tokens;
  StagedEntries::add_rows(llm_, at, entry.context, 1, rows);
  staged_.spans()[0].packed.push_back(
      {at, pool_.kv_entry(request.pages[entry.context / page], entry.context % page), 1, kBothSides});
  const PackedAttention::Part part{*PackedAttention::part_of(options_.format),
                                   {request.pages.data(), div_ceil(kv_entries, page)},
                                   kv_entries};
  fused_.add(row, {&part, 1});
  rows->decode_entries += kv_entries;
}

// Entries that were exact before the step, and those that it packs, are read exactly.
void PackedCache::add_kivi(const PlanEntry& entry, uint32_t base, Request* request) {
  span_pages(*request, 0, request->keys_packed, base, kKeySide, false);
  span_pages(*request, 0, request->values_packed, base, kValueSide, false);
  span_ring(*request, request->keys_packed, entry.context, base, kKeySide, false);
  span_ring(*request, request->values_packed, entry.context, base, kValueSide, false);
  pack_kivi(entry, base, request);
}

// KV entries with packed values are read packed; the others are staged, from the first one on.
void PackedCache::add_fused_kivi(const PlanEntry& entry, uint32_t row, Request* request, StepRows* rows) {
  KVT_CHECK(entry.tokens == 1 && request->values_packed <= request->keys_packed);
  const uint32_t first = request->values_packed, staged = entry.context + 1 - first;
  const uint32_t page = memory_.page_tokens, at = staged_.open(staged);
  const uint32_t base =
      at - first;  // of KV entry 0, which is not staged: the subtraction may wrap around, additions wrap back
  StagedEntries::add_rows(llm_, base + entry.context, entry.context, 1, rows);
  span_pages(*request, first, request->keys_packed, base, kKeySide, false);
  span_ring(*request, request->keys_packed, entry.context, base, kKeySide, false);
  span_ring(*request, first, entry.context, base, kValueSide, false);
  std::vector<uint32_t> pages(div_ceil(staged, kStagedPage));
  std::iota(pages.begin(), pages.end(), at / kStagedPage);
  const PackedAttention::Part parts[] = {{kPartInt2, {request->pages.data(), div_ceil(first, page)}, first},
                                         {kPartHighPrecision, pages, staged}};
  fused_.add(row, parts);
  rows->decode_entries += entry.context + 1;
  pack_kivi(entry, base, request);
}

// Pads spans to their maximum per row: pages of its staged keys, its ring once or twice around per side, the
// value that is packed and the KV entry that is stored.
void PackedCache::even_out(bool decodes, size_t rows) {
  StagedSpans& spans = staged_.spans()[0];
  const size_t pages = options_.residual_tokens / memory_.page_tokens + 1;
  const auto packs_keys = [](const KvEntrySpan& span) { return (span.sides & kKeySide) != 0; };
  const bool keys = std::any_of(spans.packed.begin(), spans.packed.end(), packs_keys);
  const struct {
    std::vector<KvEntrySpan>* list;
    size_t each;
  } bounds[] = {{&spans.unpacked, pages},
                {&spans.from_exact, 4},
                {&spans.packed, keys ? 1 + pages : 1},
                {&spans.to_exact, 1}};
  even_ = fused_.ready() && decodes;
  for (const auto& [list, each] : bounds) even_ = even_ && list->size() <= each * rows;
  for (const auto& [list, each] : bounds) {
    if (even_) list->resize(each * rows, KvEntrySpan{});
  }
}

void PackedCache::pack_kivi(const PlanEntry& entry, uint32_t base, Request* request) {
  const uint32_t residual = options_.residual_tokens, end = entry.context + entry.tokens;
  const uint32_t keys = request->keys_packed + (end - request->keys_packed) / residual * residual;
  const uint32_t values = std::max(request->values_packed, end > residual ? end - residual : 0);
  span_pages(*request, request->keys_packed, keys, base, kKeySide, true);
  span_pages(*request, request->values_packed, values, base, kValueSide, true);
  span_ring(*request, std::max(entry.context, end > residual ? end - residual : 0), end, base, kBothSides,
            true);
  request->keys_packed = keys, request->values_packed = values;
}

void PackedCache::span_pages(const Request& request, uint32_t from, uint32_t to, uint32_t base,
                             uint32_t sides, bool packs) {
  const uint32_t page = memory_.page_tokens;
  StagedSpans& spans = staged_.spans()[0];
  for (uint32_t at = from; at < to;) {
    const uint32_t count = std::min(to, (at / page + 1) * page) - at;
    const uint32_t kv_entry = pool_.kv_entry(request.pages[at / page], at % page);
    if (packs) {
      spans.packed.push_back({base + at, kv_entry, count, sides});
    } else {
      spans.unpacked.push_back({kv_entry, base + at, count, sides});
    }
    at += count;
  }
}

void PackedCache::span_ring(const Request& request, uint32_t from, uint32_t to, uint32_t base, uint32_t sides,
                            bool keeps) {
  const uint32_t ring = options_.residual_tokens;
  StagedSpans& spans = staged_.spans()[0];
  for (uint32_t at = from; at < to;) {
    const uint32_t count = std::min(to, (at / ring + 1) * ring) - at;
    const uint32_t kv_entry = request.slot * ring + at % ring;
    if (keeps) {
      spans.to_exact.push_back({base + at, kv_entry, count, sides});
    } else {
      spans.from_exact.push_back({kv_entry, base + at, count, sides});
    }
    at += count;
  }
}

void PackedCache::plan(const DeviceRows& rows, const StepStream& on) {
  staged_.plan(rows, on);
  fused_.plan(on);
}

bool PackedCache::repeats(StepGraphKey* graph_key) const {
  const DeviceRows& rows = graph_key->rows;
  if (rows.decodes_count > 0 || rows.chunks_count > 0 || rows.other_rows > 0) return false;
  if (!fused_.ready() || !fused_.repeats()) return false;
  staged_.add_to(graph_key);
  if (!kivi()) return staged_.repeats();
  for (const uint32_t layer : {0u, llm_.layers - 1}) graph_key->add(exact_.layer(layer));
  return even_;
}

StepListSpec PackedCache::listed(const DeviceRows& rows) const {
  return {llm_.layers,
          false,
          {.rows = rows_present(rows),
           .uploads = fused_.has_rows() ? 3u : 2u,  // the step's rows, spans, rows that read packed pages
           .packed_decodes = fused_.has_rows(),
           .keeps = staged_.keeps()}};
}

void PackedCache::attend(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows,
                         const StepStream& on) {
  const StepList list = list_attention(listed(rows), layer);
  for (const ListedOperation& one : list.operations()) {
    on.timer->begin(one);
    if (one.kind == Operation::kPackedAttention) {
      fused_.attend(layer, tensors, {&pool_, 1}, on.stream, kivi() ? staged_.pages() : nullptr);
    } else {
      staged_.start(one, tensors, rows, {&pool_, 1}, kivi() ? &exact_ : nullptr, on.stream);
    }
  }
}

void PackedCache::notify(const Command& command) {
  // A preempted request may still be in a step that is already launched. When it resumes, it starts a new
  // table.
  const auto* drop = std::get_if<DropRequestState>(&command);
  if (drop == nullptr || drop->reason == DropRequestState::Reason::kPreempted) return;
  const auto request = requests_.find(drop->request);
  if (request == requests_.end()) return;
  if (kivi()) free_slots_.push_back(request->second.slot);
  requests_.erase(request);
}

void PackedCache::copy(PageId source, PageId target, cudaStream_t stream) {
  pool_.pages.copy(source, target, stream);
}

void PackedCache::warm_up(uint32_t size, const StepStream& on, StepRows* rows) {
  fused_.clear();
  even_ = false;
  staged_.warm_up(size, on, rows);
}

}  // namespace kvtwin::cuda
