#include "engine/cpu/retrieval/retrieved_cache.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/common/retrieval/page_pooling.h"
#include "engine/cpu/packed/packed_rows.h"
#include "kernels/packed/packed_page.h"

namespace kvtwin::cpu {

std::optional<std::string> check_retrieved(const RetrievedOptions& options, const KvMemory& memory,
                                           const LlmSpec& llm) {
  const uint32_t width = llm.kv_heads * llm.head_dim;
  if (options.format != Format::kBf16 &&
      !page_shape_is_possible({memory.page_tokens, llm.head_dim, options.group}, options.format)) {
    return std::string(format_name(options.format)) + " packs groups of " + std::to_string(options.group) +
           ", which heads of " + std::to_string(llm.head_dim) + " do not divide into; choose another group";
  }
  if (options.kind != RetrievalKind::kRecallsValues || options.spec.rank <= width) return std::nullopt;
  return "rank is " + std::to_string(options.spec.rank) + ", but the keys of a layer have " +
         std::to_string(width) + " numbers; use at most so many";
}

RetrievedCache::RetrievedCache(const KvMemory& memory, const ModelWeights* weights,
                               const RetrievedOptions& options, KvStore kv, KvStore resident)
    : memory_(memory),
      llm_(weights->llm()),
      options_(options),
      spec_(options.spec),
      shape_(spec_, memory.page_tokens),
      offloaded_(options.kind != RetrievalKind::kPagesOnGpu),
      layout_(options.copies.layout),
      rope_(rope_frequencies(llm_)),
      kv_(std::move(kv)),
      resident_(std::move(resident)),
      summaries_(llm_, uint64_t{memory.pages_gpu} + memory.pages_host),
      prefix_rows_(memory.page_tokens, uint64_t{llm_.query_heads} * llm_.head_dim,
                   uint64_t{llm_.kv_heads} * llm_.head_dim),
      streams_(&kv_, {.layout = layout_,
                      .buffers = options.copies.staging_buffers,
                      .delays = options.delays,
                      .poison = memory.poison,
                      .witness = options.witness}) {
  if (options.kind != RetrievalKind::kRecallsTokens) return;
  for (uint32_t l = spec_.layers_dense; l < llm_.layers; ++l) projections_.emplace_back(*weights, l);
}

Result<std::unique_ptr<KvCache>> RetrievedCache::make(const KvMemory& memory, const ModelWeights* weights,
                                                      const RetrievedOptions& options) {
  const LlmSpec& llm = weights->llm();
  KVT_CHECK(options.kind != RetrievalKind::kReadsAll);
  KVT_CHECK(options.spec.layers_dense <= llm.layers);
  KVT_CHECK(!check_retrieved(options, memory, llm));
  KVT_CHECK(options.format == Format::kBf16 || options.kind == RetrievalKind::kRecallsPages);
  Result<KvStore> kv = KvStore::make(llm, memory.page_tokens, uint64_t{memory.pages_gpu} + memory.pages_host);
  if (!kv) return tl::unexpected<Error>(kv.error());
  const bool resident = options.spec.layers_dense > 0 && options.kind != RetrievalKind::kPagesOnGpu;
  Result<KvStore> dense = KvStore::make(llm, memory.page_tokens, resident ? memory.pages_host : 0);
  if (!dense) return tl::unexpected<Error>(dense.error());
  return std::unique_ptr<KvCache>(
      new RetrievedCache(memory, weights, options, std::move(*kv), std::move(*dense)));
}

ResidentRequest RetrievedCache::new_request() const {
  ResidentRequest request;
  request.layers.resize(llm_.layers);
  for (uint32_t l = spec_.layers_dense; l < llm_.layers; ++l) {
    ResidentLayer& layer = request.layers[l];
    if (options_.kind == RetrievalKind::kRecallsValues)
      layer.shadow = std::make_unique<ShadowKeys>(llm_, spec_.rank, spec_.window_tokens);
    if (options_.kind == RetrievalKind::kRecallsTokens)
      layer.partial = std::make_unique<PartialKeys>(llm_, spec_.columns_q32);
  }
  return request;
}

void RetrievedCache::begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries) {
  KVT_CHECK(launch.compressions.empty());
  take_pages(launch, offset);
  rows_.clear();
  appends_.clear();
  dense_appends_.clear();
  recalls_.assign(llm_.layers, {});
  for (const PlanEntry& entry : entries) {
    KVT_CHECK(entry.kind == EntryKind::kChunk || entry.kind == EntryKind::kDecode);
    add_rows(entry);
  }
  deal_recalls();
  streams_.pass_time();
}

void RetrievedCache::take_pages(const LaunchStep& launch, uint32_t offset) {
  const auto whole = [&](uint32_t page) { return kernels::ReadRun{page, 0, memory_.page_tokens}; };
  if (offset == 0) {
    for (const PlanEntry& entry : launch.entries) {
      if (!entry.first) continue;
      streams_.discard(entry.request);
      requests_[entry.request] = new_request();
    }
    for (const PrefixHit& prefix_hit : launch.prefix_hits) {
      if (offloaded_) {
        begin_with(prefix_hit);
        continue;
      }
      for (const PageId page : prefix_hit.pages)
        requests_[prefix_hit.request].pages.push_back(whole(raw(page)));
    }
  }
  for (const PageAllocation& allocation : launch.allocations) {
    if (allocation.offset != offset) continue;
    ResidentRequest& request = requests_[launch.entries[allocation.entry].request];
    const uint32_t page = raw(allocation.page);
    if (memory_.poison) kv_.poison(allocation.page);
    if (page < memory_.pages_gpu) {
      request.pages.push_back(whole(page));
      continue;
    }
    KVT_CHECK(offloaded_);
    request.host_copies.push_back(page);
    prefix_rows_.forget(page);
    if (resident_.pages() == 0) continue;
    const uint32_t number = page - memory_.pages_gpu;
    if (memory_.poison) resident_.poison(PageId{number});
    request.resident.push_back(whole(number));
  }
}

void RetrievedCache::begin_with(const PrefixHit& prefix_hit) {
  KVT_CHECK(options_.prefix_cache);
  ResidentRequest& request = requests_.at(prefix_hit.request);
  request.begin_with(resident_prefix(prefix_hit, memory_.pages_gpu), memory_.pages_gpu, memory_.page_tokens,
                     resident_.pages() > 0);
  request.add_factors(prefix_rows_, spec_.layers_dense, memory_.page_tokens);
}

// Copies a page from the host's layout to the GPU's.
void RetrievedCache::fetch(PageId host_copy, PageId page) {
  if (memory_.poison) kv_.poison(page);
  std::vector<float> staging(uint64_t{2} * memory_.page_tokens * llm_.head_dim);
  for (uint32_t l = spec_.layers_dense; l < llm_.layers; ++l) {
    for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
      kernels::recall_head_ref(host_page(kv_, l, raw(host_copy), layout_), h, staging.data());
      kernels::scatter_head_ref(staging.data(), h, raw(page), kv_.layer(l));
    }
  }
}

void RetrievedCache::add_rows(const PlanEntry& entry) {
  ResidentRequest& request = requests_.at(entry.request);
  // Placement resident: a request has all its pages until the step that completes its prompt has ended.
  const bool may_choose = offloaded_ ? request.in_resident : entry.kind == EntryKind::kDecode;
  KVT_CHECK(!offloaded_ || !request.in_resident || entry.tokens == 1);
  for (uint32_t position = entry.context; position < entry.context + entry.tokens; ++position) {
    const uint32_t kv_entry = position - request.dropped;
    const bool chooses = may_choose && request_retrieves(spec_, memory_.page_tokens, kv_entry + 1);
    rows_.push_back({.id = entry.request,
                     .request = &request,
                     .position = position,
                     .kv_entry = kv_entry,
                     .chooses = chooses,
                     .chunk = entry.kind == EntryKind::kChunk});
    appends_.push_back(append_of(&request, position));
    if (resident_.pages() == 0) continue;
    const kernels::ReadRun& resident = request.resident.at(kv_entry / memory_.page_tokens);
    dense_appends_.push_back({position, resident.page, kv_entry % memory_.page_tokens});
  }
}

kernels::AppendRow RetrievedCache::append_of(ResidentRequest* request, uint32_t position) {
  const uint32_t kv_entry = position - request->dropped;
  const uint32_t number = kv_entry / memory_.page_tokens, slot = kv_entry % memory_.page_tokens;
  const uint32_t place = request->in_resident ? shape_.slot_of(number) : number;
  const uint32_t page = request->pages.at(place).page;
  // The slot held the page that left the window.
  if (slot == 0 && place != number && memory_.poison) kv_.poison(PageId{page});
  return {position, page, slot};
}

// InfiniGen selects for the next layer from this layer's input.
void RetrievedCache::hidden(uint32_t layer, const float* x) {
  if (projections_.empty() || layer + 1 < spec_.layers_dense || layer + 1 >= llm_.layers) return;
  for (size_t r = 0; r < rows_.size(); ++r) {
    if (rows_[r].chooses) choose_tokens(layer + 1, rows_[r], x + r * llm_.hidden);
  }
}

void RetrievedCache::attend(uint32_t layer, float* q, float* k, const float* v, float* out) {
  if (layer < spec_.layers_dense && offloaded_) {
    attend_dense(layer, q, k, v, out);
    return;
  }
  const uint64_t width = uint64_t{llm_.query_heads} * llm_.head_dim;
  const uint64_t kv_width = uint64_t{llm_.kv_heads} * llm_.head_dim;
  const bool chooses = layer >= spec_.layers_dense;
  if (chooses) keep_factors(layer, nullptr, k);
  append(kv_.layer(layer), appends_, q, k, v);
  if (chooses) keep_factors(layer, q, k);
  if (chooses) seal_pages(layer, false);
  if (chooses && !packs()) seal_pages(layer, true);
  for (size_t r = 0; r < rows_.size(); ++r) {
    const Row& row = rows_[r];
    const float* const query = q + r * width;
    if (options_.witness != nullptr)
      options_.witness->rotated(row.id, layer, row.position, query, k + r * kv_width, v + r * kv_width);
    if (row.chooses && chooses) {
      attend_chosen(layer, row, query, out + r * width);
    } else {
      attend_all(layer, row, query, out + r * width);
    }
    row.request->layers[layer].q_before.assign(query, query + width);
  }
  if (packs()) {
    store_rows(kv_.layer(layer), appends_, true);
    if (chooses) seal_pages(layer, true);
  }
  streams_.pass_time();
}

// Appends the rows. In a packed format, keys and values are first rounded to bf16, as a GPU's projections
// are, and rows outside chunks are then packed and unpacked.
void RetrievedCache::append(const kernels::KvPages& pages, std::span<const kernels::AppendRow> rows, float* q,
                            float* k, const float* v) {
  const kernels::RopeTable rope{rope_.inverse, rope_.scale};
  if (!packs()) {
    kernels::rope_append_ref(rope, rows, llm_.query_heads, q, k, v, pages);
    return;
  }
  values_.resize(rows.size() * llm_.kv_heads * llm_.head_dim);
  round_to_bf16(v, values_);
  kernels::rope_append_ref(rope, rows, llm_.query_heads, q, k, values_.data(), pages);
  for (const kernels::AppendRow& row : rows) {
    for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
      float* const key = pages.keys + pages.at(row.page, h, row.slot);
      round_to_bf16(key, {key, llm_.head_dim});
    }
  }
  store_rows(pages, rows, false);
}

// Packs and unpacks the KV entries of `rows`: those of chunks, or all others.
void RetrievedCache::store_rows(const kernels::KvPages& pages, std::span<const kernels::AppendRow> rows,
                                bool chunks) {
  const PageShape shape{1, llm_.head_dim, options_.group};
  packed_page_.resize(page_bytes(options_.format, shape));
  for (size_t r = 0; r < rows.size(); ++r) {
    if (rows_[r].chunk != chunks) continue;
    for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
      const uint64_t at = pages.at(rows[r].page, h, rows[r].slot);
      pack_and_read(options_.format, shape, 0, packed_page_, pages.keys + at, pages.values + at,
                    pages.keys + at, pages.values + at);
    }
  }
}

void RetrievedCache::attend_dense(uint32_t layer, float* q, float* k, const float* v, float* out) {
  const kernels::KvPages pages = resident_.layer(layer);
  append(pages, dense_appends_, q, k, v);
  std::vector<kernels::AttentionRow> reads;
  for (const Row& row : rows_) reads.push_back({row.request->resident, row.kv_entry + 1});
  const float scale = 1.0f / std::sqrt(static_cast<float>(llm_.head_dim));
  kernels::attention_ref(pages, {0, llm_.kv_heads}, llm_.query_heads, scale, q, reads, out, nullptr);
  if (packs()) store_rows(pages, dense_appends_, true);
}

void RetrievedCache::attend_all(uint32_t layer, const Row& row, const float* q, float* out) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(llm_.head_dim));
  const kernels::AttentionRow reads{row.request->pages, row.kv_entry + 1};
  kernels::attention_ref(kv_.layer(layer), {0, llm_.kv_heads}, llm_.query_heads, scale, q, {&reads, 1}, out,
                         nullptr);
}

// Stores what methods derive from keys: unrotated ones (q null) and rotated ones.
void RetrievedCache::keep_factors(uint32_t layer, const float* q, const float* k) {
  const uint64_t width = uint64_t{llm_.query_heads} * llm_.head_dim;
  const uint64_t kv_width = uint64_t{llm_.kv_heads} * llm_.head_dim;
  for (size_t r = 0; r < rows_.size(); ++r) {
    ResidentLayer& own = rows_[r].request->layers[layer];
    const bool shadow = own.shadow != nullptr && q == nullptr,
               partial = own.partial != nullptr && q != nullptr;
    if (shadow) own.shadow->add(k + r * kv_width);
    if (partial) own.partial->add(q + r * width, k + r * kv_width);
    if (!options_.prefix_cache || !(shadow || partial)) continue;
    const uint32_t kv_entry = rows_[r].kv_entry,
                   host_copy = rows_[r].request->host_copies.at(kv_entry / memory_.page_tokens);
    prefix_rows_.put(layer, host_copy, kv_entry % memory_.page_tokens, partial ? q + r * width : nullptr,
                     k + r * kv_width);
  }
}

// Summarises the pages that this step has filled, and copies them to the host: those filled by rows of
// chunks, or all others.
void RetrievedCache::seal_pages(uint32_t layer, bool chunks) {
  for (size_t r = 0; r < rows_.size(); ++r) {
    const Row& row = rows_[r];
    if (row.chunk != chunks) continue;
    if ((row.kv_entry + 1) % memory_.page_tokens != 0) continue;
    seal_page(layer, *row.request, row.kv_entry / memory_.page_tokens, appends_[r].page);
  }
}

// `number`: the index of the page in the retained context; `page`: the GPU page that holds it.
void RetrievedCache::seal_page(uint32_t layer, const ResidentRequest& request, uint32_t number,
                               uint32_t page) {
  const kernels::KvPages pages = kv_.layer(layer);
  const uint32_t owner = offloaded_ ? request.host_copies.at(number) : page;
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    summaries_.summarise(kind_of(spec_.summary), owner, layer, h, pages.keys + pages.at(page, h, 0),
                         memory_.page_tokens);
  }
  if (offloaded_) kernels::offload_page_ref(pages, page, host_copy(layer, request, number));
}

void RetrievedCache::end(const LaunchStep&, uint32_t, std::span<const PlanEntry> entries,
                         DataOutcomes* values) {
  for (const PlanEntry& entry : entries) {
    ResidentRequest& request = requests_.at(entry.request);
    if (offloaded_ && entry.samples && !request.in_resident)
      enter_resident(&request, entry.context + entry.tokens);
    // If the next step chooses pages. (ShadowKV)
    if (request.in_resident &&
        request_retrieves(spec_, memory_.page_tokens, entry.context + entry.tokens + 1))
      request.factorise();
  }
  values->recalls = recalls_;
}

void RetrievedCache::notify(const Command& command) {
  if (const auto* transfer = std::get_if<StartTransfer>(&command)) {
    KVT_CHECK(transfer->source.size() == transfer->target.size());
    for (size_t i = 0; i < transfer->source.size(); ++i) {
      if (offloaded_) {
        fetch(transfer->source[i], transfer->target[i]);
        continue;
      }
      kv_.copy(transfer->source[i], transfer->target[i]);
      summaries_.copy(raw(transfer->source[i]), raw(transfer->target[i]));
    }
  }
  const auto* drop = std::get_if<DropRequestState>(&command);
  if (drop == nullptr) return;
  const auto request = requests_.find(drop->request);
  if (request == requests_.end()) return;
  if (drop->reason != DropRequestState::Reason::kPreempted) {
    streams_.discard(drop->request);
    requests_.erase(request);
    return;
  }
  // The request may still be part of a launched step. That step reads the pages that were requested before;
  // its own recalls would write to pages that belong to other requests by then.
  for (uint32_t layer = 0; layer < llm_.layers; ++layer) streams_.wait(drop->request, layer);
  request->second.preempted = true;
}

}  // namespace kvtwin::cpu
