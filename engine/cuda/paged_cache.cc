#include "engine/cuda/paged_cache.h"

#include <utility>

#include "engine/base/check.h"

namespace kvtwin::cuda {

Result<OwnedCache> PagedCache::make(const KvMemory& memory, const LlmSpec* llm) {
  std::unique_ptr<PagedCache> out(new PagedCache(memory, llm));
  Result<RowAttention> attention =
      RowAttention::make(llm, {memory.page_tokens, llm->kv_heads, memory.pages_gpu, memory.rows_max});
  if (!attention) return tl::unexpected<Error>(attention.error());
  out->attention_ = std::move(*attention);
  Result<DevicePages> pages =
      DevicePages::make(*llm, memory.page_tokens, memory.pages_gpu, memory.pages_host);
  if (!pages) return tl::unexpected<Error>(pages.error());
  out->pages_ = std::move(*pages);
  return OwnedCache(out.release());
}

void PagedCache::begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
                       const StepStream& on, StepRows* rows) {
  KVT_CHECK(launch.compressions.empty());  // compressions belong to other layouts
  take_pages(launch, offset, on.stream);
  for (const PlanEntry& entry : entries) add_entry(entry, rows);
  if (padded_forms() > 0 && rows->chunks.empty() && rows->others.empty())
    attention_.fill_up(launch.tokens_padded, rows);
}

void PagedCache::fill_up(uint32_t, uint32_t size, const StepStream&, StepRows* rows) {
  attention_.fill_up(size, rows);
}

void PagedCache::take_pages(const LaunchStep& launch, uint32_t offset, cudaStream_t stream) {
  if (offset == 0) {
    for (const PlanEntry& entry : launch.entries) {
      if (entry.first) tables_[entry.request].clear();
    }
    for (const PrefixHit& prefix_hit : launch.prefix_hits) {
      for (const PageId page : prefix_hit.pages) tables_[prefix_hit.request].push_back(raw(page));
    }
  }
  for (const PageAllocation& allocation : launch.allocations) {
    if (allocation.offset != offset) continue;
    KVT_CHECK(raw(allocation.page) < memory_.pages_gpu);
    if (memory_.poison) pages_.poison(allocation.page, stream);
    tables_[launch.entries[allocation.entry].request].push_back(raw(allocation.page));
  }
}

void PagedCache::add_entry(const PlanEntry& entry, StepRows* rows) {
  KVT_CHECK(entry.kind == EntryKind::kChunk || entry.kind == EntryKind::kDecode);
  const std::vector<uint32_t>& table = tables_.at(entry.request);
  const uint32_t kv_entries = entry.context + entry.tokens, page = memory_.page_tokens;
  const uint32_t used = div_ceil(kv_entries, page);
  KVT_CHECK(used <= table.size());
  const auto at = static_cast<uint32_t>(rows->pages.size());
  rows->pages.insert(rows->pages.end(), table.begin(), table.begin() + used);
  const auto first = static_cast<uint32_t>(rows->positions.size());
  for (uint32_t position = entry.context; position < kv_entries; ++position) {
    rows->positions.push_back(position);
    rows->slots.push_back({table[position / page] * llm_.kv_heads, position % page});
  }
  attention_.add(first, at, entry.context, entry.tokens, rows);
}

void PagedCache::plan(const DeviceRows& rows, const StepStream& on) {
  attention_.plan(rows, pages_.layer(0), on.stream);
}

void PagedCache::attend(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows,
                        const StepStream& on) {
  __nv_bfloat16* const pool = pages_.layer(layer);
  const StepList list = list_attention(listed(rows), layer);
  for (const ListedOperation& one : list.operations()) {
    on.timer->begin(one);
    attention_.start(one, tensors, rows, pool, on.stream);
  }
}

StepListSpec PagedCache::listed(const DeviceRows& rows) const {
  return {llm_.layers, false, {.rows = rows_present(rows)}};
}

void PagedCache::notify(const Command& command) {
  // A preempted request may still be in a step that is already launched. When it resumes, it starts a new
  // table.
  const auto* drop = std::get_if<DropRequestState>(&command);
  if (drop != nullptr && drop->reason != DropRequestState::Reason::kPreempted) tables_.erase(drop->request);
}

void PagedCache::copy(PageId source, PageId target, cudaStream_t stream) {
  pages_.copy(source, target, stream);
}

void PagedCache::warm_up(uint32_t size, const StepStream&, StepRows* rows) {
  attention_.add_warm_up(size, rows);
}

}  // namespace kvtwin::cuda
