#include "engine/cpu/packed_cache.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/cpu/packed_rows.h"

namespace kvtwin::cpu {

Result<std::unique_ptr<KvCache>> PackedCache::make(const KvMemory& memory, const LlmSpec& llm,
                                                   const PackedFormat& format) {
  const PageShape shape{memory.page_tokens, llm.head_dim, format.group};
  const PackedPool pool{format.format, static_cast<uint32_t>(memory.pages())};
  Result<PackedStore> store =
      PackedStore::make(llm, shape, {&pool, 1}, div_ceil(format.step_tokens_max, memory.page_tokens));
  if (!store) return tl::unexpected<Mistake>(store.error());
  return std::unique_ptr<KvCache>(new PackedCache(memory, llm, format, std::move(*store)));
}

void PackedCache::begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries) {
  KVT_CHECK(launch.compressions.empty());  // of other layouts than this one
  take_pages(launch, offset);
  shares_.resize(entries.size());
  uint32_t row = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const PlanEntry& entry = entries[i];
    KVT_CHECK(entry.kind == EntryKind::kChunk || entry.kind == EntryKind::kDecode);
    Share& share = shares_[i];
    share.call = &calls_.at(entry.call);
    if (entry.first && offset == 0) share.call->keys_packed = share.call->values_packed = entry.context;
    share.row = row;
    share.tokens = entry.tokens;
    share.context = entry.context;
    row += entry.tokens;
    const uint32_t end = entry.context + entry.tokens;
    KVT_CHECK(end <= share.call->pages.size() * uint64_t{memory_.page_tokens});
    share.keys_packed = share.call->keys_packed;
    share.values_packed = share.call->values_packed;
    if (kivi()) {
      const uint32_t residual = format_.residual_tokens;
      share.keys_packed += (end - share.keys_packed) / residual * residual;
      share.values_packed = std::max(share.values_packed, end > residual ? end - residual : 0);
    }
    plan_reads(entry, &share);
  }
  KVT_CHECK(row <= format_.step_tokens_max);
}

void PackedCache::take_pages(const LaunchStep& launch, uint32_t offset) {
  if (offset == 0) {
    for (const PlanEntry& entry : launch.entries) {
      if (entry.first) calls_[entry.call] = {};
    }
    for (const Adoption& adoption : launch.adoptions)
      calls_[adoption.call].pages.assign(adoption.pages.begin(), adoption.pages.end());
  }
  for (const PageGrant& grant : launch.grants) {
    if (grant.offset != offset) continue;
    KVT_CHECK(raw(grant.page) < memory_.pages_gpu);
    if (memory_.poison) store_.poison(grant.page);
    calls_[launch.entries[grant.entry].call].pages.push_back(grant.page);
  }
}

// Cells by position; a chunk's own rows are those in scratch.
void PackedCache::plan_reads(const PlanEntry& entry, Share* share) const {
  const uint32_t page = memory_.page_tokens;
  const bool chunk = entry.kind == EntryKind::kChunk;
  const uint32_t stored = entry.context + (chunk ? 0 : entry.tokens);
  share->runs.clear();
  for (uint32_t at = 0; at < stored; at += page)
    share->runs.push_back({raw(share->call->pages[at / page]), 0, std::min(page, stored - at)});
  if (chunk) scratch_runs(store_, share->row, entry.tokens, &share->runs);
  share->rows.clear();
  for (uint32_t i = 0; i < entry.tokens; ++i) share->rows.push_back({share->runs, entry.context + i + 1});
}

void PackedCache::attend(uint32_t layer, float* q, float* k, const float* v, float* out) {
  const uint64_t query = uint64_t{llm_.query_heads} * llm_.head_dim;
  const uint64_t width = uint64_t{llm_.kv_heads} * llm_.head_dim;
  const kernels::KvPages pages = store_.layer(layer);
  const float scale = 1.0f / std::sqrt(static_cast<float>(llm_.head_dim));
  const uint32_t rows = shares_.empty() ? 0 : shares_.back().row + shares_.back().tokens;
  values_.resize(rows * width);
  round_to_bf16(v, values_);
  // In the order of the plan: who adopts what another call of this step fills stands behind it.
  for (const Share& share : shares_) {
    for (uint32_t i = 0; i < share.tokens; ++i) {
      const uint64_t row = share.row + i;
      const kernels::RopeTable rope{rope_.inverse, rope_.scale};
      kernels::rope_ref(rope, share.context + i, llm_.query_heads, llm_.head_dim, q + row * query);
      kernels::rope_ref(rope, share.context + i, llm_.kv_heads, llm_.head_dim, k + row * width);
    }
    round_to_bf16(k + share.row * width, {k + share.row * width, share.tokens * width});
    store_rows(layer, share, k, values_.data());
    kernels::attention_ref(pages, {0, llm_.kv_heads}, llm_.query_heads, scale, q + share.row * query,
                           share.rows, out + share.row * query, nullptr);
    if (kivi()) pack_due(layer, share);
  }
}

void PackedCache::store_rows(uint32_t layer, const Share& share, const float* k, const float* v) {
  const uint32_t page = memory_.page_tokens;
  for (uint32_t i = 0; i < share.tokens; ++i) {
    const uint32_t position = share.context + i;
    const PageId to = share.call->pages[position / page];
    for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
      const uint64_t at = (uint64_t{share.row + i} * llm_.kv_heads + h) * llm_.head_dim;
      set_scratch(&store_, share.row + i, layer, h, k + at, v + at);
      if (kivi()) {
        store_.set_exact(raw(to), position % page, layer, h, k + at, v + at);
      } else {
        store_.put(to, position % page, layer, h, k + at, v + at);
      }
    }
  }
}

// KIVI: cells that are no longer among the newest.
void PackedCache::pack_due(uint32_t layer, const Share& share) {
  const uint32_t page = memory_.page_tokens;
  const kernels::KvPages pages = store_.layer(layer);
  std::vector<float> exact;
  const auto copy = [&](const float* from, size_t count) {
    exact.assign(from, from + count);  // what is packed is written over it
    return exact.data();
  };
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    for (uint32_t at = share.call->keys_packed; at < share.keys_packed; at += format_.group) {
      const PageId to = share.call->pages[at / page];
      const float* const k = pages.keys + pages.at(raw(to), h, at % page);
      store_.put_keys(to, at % page, layer, h, copy(k, size_t{format_.group} * llm_.head_dim));
    }
    for (uint32_t at = share.call->values_packed; at < share.values_packed; ++at) {
      const PageId to = share.call->pages[at / page];
      const float* const v = pages.values + pages.at(raw(to), h, at % page);
      store_.put_value(to, at % page, layer, h, copy(v, llm_.head_dim));
    }
  }
}

void PackedCache::end(const LaunchStep&, uint32_t, std::span<const PlanEntry>, StepValues*) {
  for (const Share& share : shares_) {
    share.call->keys_packed = share.keys_packed;
    share.call->values_packed = share.values_packed;
  }
}

void PackedCache::told(const Command& command) {
  if (const auto* transfer = std::get_if<StartTransfer>(&command)) {
    KVT_CHECK(transfer->source.size() == transfer->target.size());
    for (size_t i = 0; i < transfer->source.size(); ++i) {
      store_.copy(transfer->source[i], transfer->target[i]);
      if (memory_.poison && transfer->source_tier == Tier::kDisk) store_.poison(transfer->source[i]);
    }
  }
  // A preempted call may still be in a step that was launched before; if it comes back, it begins a new
  // table.
  const auto* drop = std::get_if<DropCallState>(&command);
  if (drop != nullptr && drop->reason != DropCallState::Reason::kPreempted) calls_.erase(drop->call);
}

}  // namespace kvtwin::cpu
