#include "engine/cpu/paged_cache.h"

#include <cmath>

#include "engine/base/check.h"

namespace kvtwin::cpu {

Result<std::unique_ptr<KvCache>> PagedCache::make(const KvMemory& memory, const LlmSpec& llm) {
  Result<KvStore> kv = KvStore::make(llm, memory.page_tokens, memory.pages());
  if (!kv) return tl::unexpected<Mistake>(kv.error());
  return std::unique_ptr<KvCache>(new PagedCache(memory, llm, std::move(*kv)));
}

void PagedCache::begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries) {
  KVT_CHECK(launch.compressions.empty());  // of other layouts than this one
  take_pages(launch, offset);
  appends_.clear();
  reads_.clear();
  for (const PlanEntry& entry : entries) {
    KVT_CHECK(entry.kind == EntryKind::kChunk || entry.kind == EntryKind::kDecode);
    const PageTable& pages = calls_.at(entry.call);
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
      if (entry.first) calls_[entry.call].clear();
    }
    for (const Adoption& adoption : launch.adoptions) {
      for (const PageId page : adoption.pages) calls_[adoption.call].push_back(whole(page));
    }
  }
  for (const PageGrant& grant : launch.grants) {
    if (grant.offset != offset) continue;
    if (memory_.poison) kv_.poison(grant.page);
    KVT_CHECK(raw(grant.page) < memory_.pages_gpu);
    calls_[launch.entries[grant.entry].call].push_back(whole(grant.page));
  }
}

void PagedCache::attend(uint32_t layer, float* q, float* k, const float* v, float* out) {
  const kernels::KvPages pages = kv_.layer(layer);
  kernels::rope_append_ref({rope_.inverse, rope_.scale}, appends_, llm_.query_heads, q, k, v, pages);
  const float scale = 1.0f / std::sqrt(static_cast<float>(llm_.head_dim));
  kernels::attention_ref(pages, {0, llm_.kv_heads}, llm_.query_heads, scale, q, reads_, out, nullptr);
}

void PagedCache::told(const Command& command) {
  if (const auto* transfer = std::get_if<StartTransfer>(&command)) {
    KVT_CHECK(transfer->source.size() == transfer->target.size());
    for (size_t i = 0; i < transfer->source.size(); ++i) {
      kv_.copy(transfer->source[i], transfer->target[i]);
      if (memory_.poison && transfer->source_tier == Tier::kDisk) kv_.poison(transfer->source[i]);
    }
  }
  // A preempted call may still be in a step that was launched before; if it comes back, it begins a new
  // table.
  const auto* drop = std::get_if<DropCallState>(&command);
  if (drop != nullptr && drop->reason != DropCallState::Reason::kPreempted) calls_.erase(drop->call);
}

}  // namespace kvtwin::cpu
