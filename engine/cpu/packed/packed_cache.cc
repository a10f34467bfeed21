#include "engine/cpu/packed/packed_cache.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/cpu/packed/packed_rows.h"

namespace kvtwin::cpu {

Result<std::unique_ptr<KvCache>> PackedCache::make(const KvMemory& memory, const LlmSpec& llm,
                                                   const PackedFormat& format) {
  const PageShape shape{memory.page_tokens, llm.head_dim, format.group};
  const PackedPool pool{format.format, static_cast<uint32_t>(memory.pages())};
  Result<PackedStore> store =
      PackedStore::make(llm, shape, {&pool, 1}, div_ceil(format.step_tokens_max, memory.page_tokens));
  if (!store) return tl::unexpected<Error>(store.error());
  return std::unique_ptr<KvCache>(new PackedCache(memory, llm, format, std::move(*store)));
}

void PackedCache::begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries) {
  KVT_CHECK(launch.compressions.empty());  // only other layouts compress
  take_pages(launch, offset);
  request_parts_.resize(entries.size());
  uint32_t row = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const PlanEntry& entry = entries[i];
    KVT_CHECK(entry.kind == EntryKind::kChunk || entry.kind == EntryKind::kDecode);
    RequestPart& request_part = request_parts_[i];
    request_part.request = &requests_.at(entry.request);
    if (entry.first && offset == 0)
      request_part.request->keys_packed = request_part.request->values_packed = entry.context;
    request_part.row = row;
    request_part.tokens = entry.tokens;
    request_part.context = entry.context;
    row += entry.tokens;
    const uint32_t end = entry.context + entry.tokens;
    KVT_CHECK(end <= request_part.request->pages.size() * uint64_t{memory_.page_tokens});
    request_part.keys_packed = request_part.request->keys_packed;
    request_part.values_packed = request_part.request->values_packed;
    if (kivi()) {
      const uint32_t residual = format_.residual_tokens;
      request_part.keys_packed += (end - request_part.keys_packed) / residual * residual;
      request_part.values_packed = std::max(request_part.values_packed, end > residual ? end - residual : 0);
    }
    plan_reads(entry, &request_part);
  }
  KVT_CHECK(row <= format_.step_tokens_max);
}

void PackedCache::take_pages(const LaunchStep& launch, uint32_t offset) {
  if (offset == 0) {
    for (const PlanEntry& entry : launch.entries) {
      if (entry.first) requests_[entry.request] = {};
    }
    for (const PrefixHit& prefix_hit : launch.prefix_hits)
      requests_[prefix_hit.request].pages.assign(prefix_hit.pages.begin(), prefix_hit.pages.end());
  }
  for (const PageAllocation& allocation : launch.allocations) {
    if (allocation.offset != offset) continue;
    KVT_CHECK(raw(allocation.page) < memory_.pages_gpu);
    if (memory_.poison) store_.poison(allocation.page);
    requests_[launch.entries[allocation.entry].request].pages.push_back(allocation.page);
  }
}

// Reads by position; a chunk reads its own rows from scratch.
void PackedCache::plan_reads(const PlanEntry& entry, RequestPart* request_part) const {
  const uint32_t page = memory_.page_tokens;
  const bool chunk = entry.kind == EntryKind::kChunk;
  const uint32_t stored = entry.context + (chunk ? 0 : entry.tokens);
  request_part->runs.clear();
  for (uint32_t at = 0; at < stored; at += page)
    request_part->runs.push_back(
        {raw(request_part->request->pages[at / page]), 0, std::min(page, stored - at)});
  if (chunk) scratch_runs(store_, request_part->row, entry.tokens, &request_part->runs);
  request_part->rows.clear();
  for (uint32_t i = 0; i < entry.tokens; ++i)
    request_part->rows.push_back({request_part->runs, entry.context + i + 1});
}

void PackedCache::attend(uint32_t layer, float* q, float* k, const float* v, float* out) {
  const uint64_t query = uint64_t{llm_.query_heads} * llm_.head_dim;
  const uint64_t width = uint64_t{llm_.kv_heads} * llm_.head_dim;
  const kernels::KvPages pages = store_.layer(layer);
  const float scale = 1.0f / std::sqrt(static_cast<float>(llm_.head_dim));
  const uint32_t rows = request_parts_.empty() ? 0 : request_parts_.back().row + request_parts_.back().tokens;
  values_.resize(rows * width);
  round_to_bf16(v, values_);
  // In the order of the plan: a request that reuses pages which this step fills comes after the one that
  // fills them.
  for (const RequestPart& request_part : request_parts_) {
    for (uint32_t i = 0; i < request_part.tokens; ++i) {
      const uint64_t row = request_part.row + i;
      const kernels::RopeTable rope{rope_.inverse, rope_.scale};
      kernels::rope_ref(rope, request_part.context + i, llm_.query_heads, llm_.head_dim, q + row * query);
      kernels::rope_ref(rope, request_part.context + i, llm_.kv_heads, llm_.head_dim, k + row * width);
    }
    round_to_bf16(k + request_part.row * width, {k + request_part.row * width, request_part.tokens * width});
    store_rows(layer, request_part, k, values_.data());
    kernels::attention_ref(pages, {0, llm_.kv_heads}, llm_.query_heads, scale, q + request_part.row * query,
                           request_part.rows, out + request_part.row * query, nullptr);
    if (kivi()) pack_due(layer, request_part);
  }
}

void PackedCache::store_rows(uint32_t layer, const RequestPart& request_part, const float* k,
                             const float* v) {
  const uint32_t page = memory_.page_tokens;
  for (uint32_t i = 0; i < request_part.tokens; ++i) {
    const uint32_t position = request_part.context + i;
    const PageId to = request_part.request->pages[position / page];
    for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
      const uint64_t at = (uint64_t{request_part.row + i} * llm_.kv_heads + h) * llm_.head_dim;
      set_scratch(&store_, request_part.row + i, layer, h, k + at, v + at);
      if (kivi()) {
        store_.set_exact(raw(to), position % page, layer, h, k + at, v + at);
      } else {
        store_.put(to, position % page, layer, h, k + at, v + at);
      }
    }
  }
}

// KIVI: packs KV entries that are no longer among the newest.
void PackedCache::pack_due(uint32_t layer, const RequestPart& request_part) {
  const uint32_t page = memory_.page_tokens;
  const kernels::KvPages pages = store_.layer(layer);
  std::vector<float> exact;
  const auto copy = [&](const float* from, size_t count) {
    exact.assign(from, from + count);  // packing overwrites the source
    return exact.data();
  };
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    for (uint32_t at = request_part.request->keys_packed; at < request_part.keys_packed;
         at += format_.group) {
      const PageId to = request_part.request->pages[at / page];
      const float* const k = pages.keys + pages.at(raw(to), h, at % page);
      store_.put_keys(to, at % page, layer, h, copy(k, size_t{format_.group} * llm_.head_dim));
    }
    for (uint32_t at = request_part.request->values_packed; at < request_part.values_packed; ++at) {
      const PageId to = request_part.request->pages[at / page];
      const float* const v = pages.values + pages.at(raw(to), h, at % page);
      store_.put_value(to, at % page, layer, h, copy(v, llm_.head_dim));
    }
  }
}

void PackedCache::end(const LaunchStep&, uint32_t, std::span<const PlanEntry>, DataOutcomes*) {
  for (const RequestPart& request_part : request_parts_) {
    request_part.request->keys_packed = request_part.keys_packed;
    request_part.request->values_packed = request_part.values_packed;
  }
}

void PackedCache::notify(const Command& command) {
  if (const auto* transfer = std::get_if<StartTransfer>(&command)) {
    KVT_CHECK(transfer->source.size() == transfer->target.size());
    for (size_t i = 0; i < transfer->source.size(); ++i) {
      store_.copy(transfer->source[i], transfer->target[i]);
      if (memory_.poison && transfer->source_tier == Tier::kDisk) store_.poison(transfer->source[i]);
    }
  }
  // A preempted request may still be part of a launched step; when it is readmitted, it starts a new table.
  const auto* drop = std::get_if<DropRequestState>(&command);
  if (drop != nullptr && drop->reason != DropRequestState::Reason::kPreempted) requests_.erase(drop->request);
}

}  // namespace kvtwin::cpu
