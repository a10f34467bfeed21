#include "engine/cpu/paged_cache.h"

#include <cmath>

#include "engine/base/check.h"

namespace kvtwin::cpu {

Result<std::unique_ptr<KvCache>> PagedCache::make(const KvMemory& memory, const LlmSpec& llm) {
  Result<KvStore> kv = KvStore::make(llm, memory.page_tokens, memory.pages());
  if (!kv) return tl::unexpected<Error>(kv.error());
  return std::unique_ptr<KvCache>(new PagedCache(memory, llm, std::move(*kv)));
}

void PagedCache::begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries) {
  KVT_CHECK(launch.compressions.empty());  // only other layouts compress
  take_pages(launch, offset);
  appends_.clear();
  reads_.clear();
  for (const PlanEntry& entry : entries) {
    KVT_CHECK(entry.kind == EntryKind::kChunk || entry.kind == EntryKind::kDecode);
    const PageTable& pages = requests_.at(entry.request);
    KVT_CHECK(uint64_t{entry.context} + entry.tokens <= pages.size() * uint64_t{memory_.page_tokens});
    for (uint32_t position = entry.context; position < entry.context + entry.tokens; ++position) {
      appends_.push_back(
          {position, pages[position / memory_.page_tokens].page, position % memory_.page_tokens});
      reads_.push_back({pages, position + 1});
    }
  }
}

void PagedCache::take_pages(const LaunchStep& launch, uint32_t offset) {
  const auto whole = [&](PageId page) { return kernels::ReadRun{raw(page), 0, memory_.page_tokens}; };
  if (offset == 0) {
    for (const PlanEntry& entry : launch.entries) {
      if (entry.first) requests_[entry.request].clear();
    }
    for (const PrefixHit& prefix_hit : launch.prefix_hits) {
      for (const PageId page : prefix_hit.pages) requests_[prefix_hit.request].push_back(whole(page));
    }
  }
  for (const PageAllocation& allocation : launch.allocations) {
    if (allocation.offset != offset) continue;
    if (memory_.poison) kv_.poison(allocation.page);
    KVT_CHECK(raw(allocation.page) < memory_.pages_gpu);
    requests_[launch.entries[allocation.entry].request].push_back(whole(allocation.page));
  }
}

void PagedCache::attend(uint32_t layer, float* q, float* k, const float* v, float* out) {
  const kernels::KvPages pages = kv_.layer(layer);
  kernels::rope_append_ref({rope_.inverse, rope_.scale}, appends_, llm_.query_heads, q, k, v, pages);
  const float scale = 1.0f / std::sqrt(static_cast<float>(llm_.head_dim));
  kernels::attention_ref(pages, {0, llm_.kv_heads}, llm_.query_heads, scale, q, reads_, out, nullptr);
}

void PagedCache::notify(const Command& command) {
  if (const auto* transfer = std::get_if<StartTransfer>(&command)) {
    KVT_CHECK(transfer->source.size() == transfer->target.size());
    for (size_t i = 0; i < transfer->source.size(); ++i) {
      kv_.copy(transfer->source[i], transfer->target[i]);
      if (memory_.poison && transfer->source_tier == Tier::kDisk) kv_.poison(transfer->source[i]);
    }
  }
  // A preempted request may still be part of a launched step; when it is readmitted, it starts a new table.
  const auto* drop = std::get_if<DropRequestState>(&command);
  if (drop != nullptr && drop->reason != DropRequestState::Reason::kPreempted) requests_.erase(drop->request);
}

}  // namespace kvtwin::cpu
