#include "engine/cuda/retrieval/host_chosen_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/device/cuda_check.h"
#include "kernels/attention/attention_rows.h"

namespace kvtwin::cuda {

std::optional<std::string> check_host_chosen(RetrievalKind kind, const RetrievalSpec& spec,
                                             const RecallCopies& copies, const LlmSpec& llm) {
  const uint32_t width = llm.kv_heads * llm.head_dim;
  if (kind == RetrievalKind::kRecallsValues && spec.rank > width)
    return fmt::format("rank is {}, but the keys of a layer have {} numbers; use at most so many", spec.rank,
                       width);
  if (copies.layout != HostPageLayout::kHnd) return "host_layout is nhd; hnd is computed";
  return std::nullopt;
}

HostChosenCache::HostChosenCache(const KvMemory& memory, const LlmSpec& llm, const RetrievedOptions& options)
    : memory_(memory),
      llm_(llm),
      kind_(options.kind),
      spec_(options.spec),
      shape_(spec_, memory.page_tokens),
      prefix_cache_(options.prefix_cache),
      selected_tokens_(options.selected_tokens),
      rope_(rope_frequencies(llm)),
      dense_llm_(llm),
      summaries_(llm, uint64_t{memory.pages_gpu} + memory.pages_host),
      prefix_rows_(memory.page_tokens, uint64_t{llm.query_heads} * llm.head_dim,
                   uint64_t{llm.kv_heads} * llm.head_dim) {
  dense_llm_.layers = spec_.layers_dense;
  if (shadow()) return;
  KVT_CHECK(options.weights != nullptr);
  for (uint32_t l = spec_.layers_dense; l < llm_.layers; ++l) projections_.emplace_back(*options.weights, l);
}

Result<OwnedCache> HostChosenCache::make(const KvMemory& memory, const LlmSpec& llm,
                                         const RetrievedOptions& options) {
  KVT_CHECK(!check_retrieved(options.kind, options.spec, options.copies, llm, memory.page_tokens));
  KVT_CHECK(options.spec.layers_dense < llm.layers);
  std::unique_ptr<HostChosenCache> out(new HostChosenCache(memory, llm, options));
  if (Result<void> ok = out->allocate(); !ok) return tl::unexpected<Error>(ok.error());
  return OwnedCache(out.release());
}

Result<void> HostChosenCache::allocate() {
  const auto take = [](auto made, auto* to) -> Result<void> {
    if (!made) return tl::unexpected<Error>(made.error());
    *to = std::move(*made);
    return {};
  };
  const uint32_t page = memory_.page_tokens, heads = llm_.kv_heads;
  const uint64_t rows = memory_.rows_max, each = llm_.head_dim * sizeof(__nv_bfloat16);
  const uint64_t widest = std::max<uint64_t>(uint64_t{llm_.query_heads + heads} * llm_.head_dim, llm_.hidden);
  const std::string shape = fmt::format("{} rows", rows);
  if (auto ok = take(DevicePages::make(llm_, page, memory_.pages_gpu, memory_.pages_host), &pages_); !ok)
    return ok;
  if (auto ok =
          take(RowAttention::make(&llm_, {page, heads, memory_.pages_gpu, memory_.rows_max}), &attention_);
      !ok)
    return ok;
  if (auto ok = take(Buffer::make(Buffer::Kind::kDevice, rows * heads * each, "keys of rows", shape), &keys_);
      !ok)
    return ok;
  if (auto ok = take(Buffer::make(Buffer::Kind::kPinned, rows * widest * sizeof(__nv_bfloat16),
                                  "rows on the host", shape),
                     &fetched_);
      !ok)
    return ok;
  if (spec_.layers_dense == 0) return {};
  if (auto ok = take(DevicePages::make(dense_llm_, page, memory_.pages_host, 0), &resident_); !ok) return ok;
  return take(DenseLayers::make(&llm_, page, memory_.pages_host, memory_.rows_max), &dense_);
}

HostChosenCache::Request HostChosenCache::new_request() const {
  Request request;
  request.layers.resize(llm_.layers);
  for (uint32_t l = spec_.layers_dense; l < llm_.layers; ++l) {
    if (shadow()) {
      request.layers[l].shadow = std::make_unique<cpu::ShadowKeys>(llm_, spec_.rank, spec_.window_tokens);
    } else {
      request.layers[l].partial = std::make_unique<cpu::PartialKeys>(llm_, spec_.columns_q32);
    }
  }
  return request;
}

void HostChosenCache::begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
                            const StepStream& on, StepRows* rows) {
  KVT_CHECK(launch.compressions.empty());
  rows_.clear();
  dense_.clear();
  recalls_.assign(llm_.layers, {});
  take_pages(launch, offset, on.stream);
  uint64_t choosing = 0;
  for (const PlanEntry& entry : entries) add_entry(entry, rows);
  for (const Row& row : rows_) choosing += row.chooses ? 1 : 0;
  // Blocks of one layer.
  const uint64_t block = uint64_t{2} * memory_.page_tokens * llm_.head_dim * sizeof(__nv_bfloat16);
  grow(&staged_, Buffer::Kind::kPinned, choosing * llm_.kv_heads * shape_.selectable * block,
       "blocks on their way to the GPU");
}

void HostChosenCache::take_pages(const LaunchStep& launch, uint32_t offset, cudaStream_t stream) {
  const auto whole = [&](uint32_t page) { return kernels::ReadRun{page, 0, memory_.page_tokens}; };
  if (offset == 0) {
    for (const PlanEntry& entry : launch.entries) {
      if (entry.first) requests_[entry.request] = new_request();
    }
    for (const PrefixHit& prefix_hit : launch.prefix_hits) begin_with(prefix_hit);
  }
  for (const PageAllocation& allocation : launch.allocations) {
    if (allocation.offset != offset) continue;
    Request& request = requests_.at(launch.entries[allocation.entry].request);
    const uint32_t page = raw(allocation.page);
    if (page < memory_.pages_gpu) {
      if (memory_.poison) pages_.poison(allocation.page, stream);
      request.pages.push_back(whole(page));
      continue;
    }
    request.host_copies.push_back(page);
    prefix_rows_.forget(page);
    if (spec_.layers_dense == 0) continue;
    const uint32_t number = page - memory_.pages_gpu;
    if (memory_.poison) resident_.poison(PageId{number}, stream);
    request.resident.push_back(whole(number));
  }
}

void HostChosenCache::begin_with(const PrefixHit& prefix_hit) {
  KVT_CHECK(prefix_cache_);
  Request& request = requests_.at(prefix_hit.request);
  request.begin_with(cpu::resident_prefix(prefix_hit, memory_.pages_gpu), memory_.pages_gpu,
                     memory_.page_tokens, spec_.layers_dense > 0);
  request.add_factors(prefix_rows_, spec_.layers_dense, memory_.page_tokens);
}

void HostChosenCache::add_entry(const PlanEntry& entry, StepRows* rows) {
  KVT_CHECK(entry.kind == EntryKind::kChunk || entry.kind == EntryKind::kDecode);
  Request& request = requests_.at(entry.request);
  // A request keeps all its pages on the GPU until the step that completes its prompt has ended.
  KVT_CHECK(!request.in_resident || entry.tokens == 1);
  const uint32_t page_tokens = memory_.page_tokens, end = entry.context + entry.tokens;
  const bool chooses = request.in_resident && request_retrieves(spec_, page_tokens, end);
  const auto first = static_cast<uint32_t>(rows->positions.size());
  for (uint32_t position = entry.context; position < end; ++position) {
    const uint32_t number = position / page_tokens;
    const uint32_t page = request.pages.at(request.in_resident ? shape_.slot_of(number) : number).page;
    rows->positions.push_back(position);
    rows->slots.push_back({page * llm_.kv_heads, position % page_tokens});
    rows_.push_back({entry.request, &request, position, page, chooses});
  }
  if (spec_.layers_dense > 0) {
    std::vector<uint32_t> pages;
    for (const kernels::ReadRun& page : request.resident) pages.push_back(page.page);
    dense_.add(pages, entry.context, entry.tokens, 0);
  }
  if (chooses) return add_spans(request, first, entry.context, rows);
  const auto table = static_cast<uint32_t>(rows->pages.size());
  for (uint32_t page = 0; page < pages_of(end); ++page) rows->pages.push_back(request.pages.at(page).page);
  attention_.add(first, table, entry.context, entry.tokens, rows);
}

// ShadowKV: all slots of the resident pages, the same for all heads; their content differs by head. The
// window comes last, because its last page may be partly filled. (InfiniGen: attend_tokens().)
void HostChosenCache::add_spans(const Request& request, uint32_t row, uint32_t position, StepRows* rows) {
  if (!shadow()) return;
  const uint32_t pages = pages_of(position + 1), page_tokens = memory_.page_tokens;
  const auto table = static_cast<uint32_t>(rows->pages.size());
  for (uint32_t slot = 0; slot < shape_.slots - shape_.window; ++slot)
    rows->pages.push_back(request.pages.at(slot).page);
  for (uint32_t page = pages - shape_.window; page < pages; ++page)
    rows->pages.push_back(request.pages.at(shape_.slot_of(page)).page);
  attention_.add(row, table, (shape_.slots - 1) * page_tokens + position % page_tokens, 1, rows);
}

void HostChosenCache::plan(const DeviceRows& rows, const StepStream& on) {
  attention_.plan(rows, pages_.layer(0), on.stream);
  if (spec_.layers_dense == 0) return;
  dense_.send(on);
  dense_.plan(resident_.layer(0), on.stream);
}

// Copies `width` numbers of every row to the host; waits for the copy, and so for all earlier work on the
// stream.
void HostChosenCache::fetch(const __nv_bfloat16* from, uint32_t width, std::vector<float>* to,
                            cudaStream_t stream) {
  const uint64_t numbers = rows_.size() * uint64_t{width}, bytes = numbers * sizeof(__nv_bfloat16);
  must(cudaMemcpyAsync(fetched_.as<void>(), from, bytes, cudaMemcpyDeviceToHost, stream), "copy of rows",
       bytes, [&] { return fmt::format("{} rows of {}", rows_.size(), width); });
  must(cudaStreamSynchronize(stream), "copy of rows", bytes);
  to->resize(numbers);
  for (uint64_t i = 0; i < numbers; ++i) (*to)[i] = __bfloat162float(fetched_.as<__nv_bfloat16>()[i]);
  staged_numbers_ = 0;  // the wait also covers earlier copies from the staging buffer
}

void HostChosenCache::attend(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows,
                             const StepStream& on) {
  const bool any = std::any_of(rows_.begin(), rows_.end(), [](const Row& row) { return row.chooses; });
  on.timer->begin(Operation::kAppend, layer);
  if (any && !shadow() && layer + 1 >= spec_.layers_dense && layer + 1 < llm_.layers) {
    fetch(tensors.hidden, llm_.hidden, &hidden_, on.stream);
    for (size_t r = 0; r < rows_.size(); ++r) {
      if (rows_[r].chooses) choose_tokens(layer + 1, rows_[r], hidden_.data() + r * llm_.hidden, on.stream);
    }
  }
  if (dense(layer)) {
    return dense_.attend(layer, tensors, resident_.layer(layer), on);
  }
  attention_.append(tensors, rows, pages_.layer(layer), on.stream, keys_.as<__nv_bfloat16>());
  if (!rows_.empty()) {  // empty during warm-up
    const uint32_t width = llm_.query_heads * llm_.head_dim;
    // Copies of this layer's tokens from the staging buffer may still be in flight; fetch() waits for them.
    fetch(tensors.q, width, &queries_, on.stream);
    fetch(keys_.as<__nv_bfloat16>(), llm_.kv_heads * llm_.head_dim, &row_keys_, on.stream);
    keep_rows(layer);
    seal(layer, on.stream);
    for (size_t r = 0; r < rows_.size(); ++r) {
      const float* const q = queries_.data() + r * width;
      if (rows_[r].chooses && shadow()) rebuild(layer, rows_[r], q, on.stream);
      rows_[r].request->layers[layer].q_before.assign(q, q + width);
    }
  }
  attention_.attend(layer, tensors, rows, pages_.layer(layer), on.stream, on.timer);
  if (any && !shadow()) attend_tokens(layer, tensors, on);
}

// Sinks, tokens and window as a list of KV entries, because the entries that a head reads end inside pages.
void HostChosenCache::attend_tokens(uint32_t layer, const LayerRows& tensors, const StepStream& on) {
  const uint32_t page_tokens = memory_.page_tokens;
  std::vector<QueryRow> list;
  std::vector<uint32_t> kv_entries;
  for (uint32_t r = 0; r < rows_.size(); ++r) {
    const Row& row = rows_[r];
    if (!row.chooses) continue;
    const uint32_t end = row.position + 1, pages = pages_of(end);
    for (uint32_t head = 0; head < llm_.kv_heads; ++head) {
      const auto table = static_cast<uint32_t>(kv_entries.size());
      const auto add = [&](uint32_t slot, uint32_t count) {
        const uint32_t first = row.request->pages.at(slot).page * page_tokens;
        for (uint32_t i = 0; i < count; ++i) kv_entries.push_back(first + i);
      };
      for (uint32_t page = 0; page < shape_.sinks; ++page) add(page, page_tokens);
      const auto count = static_cast<uint32_t>(row.request->layers[layer].tokens.at(head).size());
      for (uint32_t i = 0; i < count; i += page_tokens)
        add(shape_.sinks + i / page_tokens, std::min(page_tokens, count - i));
      for (uint32_t page = pages - shape_.window; page < pages; ++page)
        add(shape_.slot_of(page), std::min(page_tokens, end - page * page_tokens));
      list.push_back({r, table, static_cast<uint32_t>(kv_entries.size()) - table, head, head});
    }
  }
  on.timer->begin(Operation::kRowAttention, layer);
  kv_entries_.clear();
  const ListAt<QueryRow> list_at = kv_entries_.add(list);
  const ListAt<uint32_t> entries_at = kv_entries_.add(kv_entries);
  kv_entries_.send(on.stream);
  AttentionRowsArgs args;
  args.pool = pages_.layer(layer), args.pages = kv_entries_.at(entries_at),
  args.list = kv_entries_.at(list_at);
  args.q = tensors.q, args.out = tensors.out;
  args.scale = 1 / std::sqrt(static_cast<float>(llm_.head_dim));
  args.rows = list_at.count, args.query_heads = llm_.query_heads, args.kv_heads = llm_.kv_heads;
  args.head_dim = llm_.head_dim, args.page_tokens = page_tokens, args.heads_per_page = llm_.kv_heads;
  args.by_head = args.listed = true;
  must(attention_rows(args, on.stream), "attention_rows", 0,
       [&] { return fmt::format("{} rows and heads, layer {}", list_at.count, layer); });
}

void HostChosenCache::end(const LaunchStep&, uint32_t, std::span<const PlanEntry> entries,
                          const StepStream& on, DataOutcomes* values) {
  values->recalls = recalls_;
  staged_numbers_ = 0;
  for (const PlanEntry& entry : entries) {
    Request& request = requests_.at(entry.request);
    if (!entry.samples || request.in_resident) continue;
    request.in_resident = true;
    for (cpu::ResidentLayer& layer : request.layers) {
      if (layer.partial != nullptr) layer.partial->choose_columns();
    }
    const uint32_t pages = pages_of(entry.context + entry.tokens);
    KVT_CHECK(request.pages.size() == pages && request.host_copies.size() == pages);
    if (pages > shape_.slots) {
      // Ring slots to be overwritten hold pages that left the window: see slot_of().
      for (uint32_t page = std::max(pages - shape_.window, shape_.slots); page < pages; ++page)
        pages_.copy(PageId{request.pages[page].page}, PageId{request.pages[shape_.slot_of(page)].page},
                    on.stream);
      for (uint32_t layer = spec_.layers_dense; layer < llm_.layers && shadow(); ++layer)
        fill_slots(layer, &request, pages, on.stream);
    }
    request.pages.resize(gpu_pages_held(spec_, memory_.page_tokens, pages));
  }
  must(cudaStreamSynchronize(on.stream), "filling of arenas");
}

void HostChosenCache::notify(const Command& command) {
  // A preempted request may still be in a step that is already launched. That step's writes precede those of
  // any later step.
  const auto* drop = std::get_if<DropRequestState>(&command);
  if (drop != nullptr && drop->reason != DropRequestState::Reason::kPreempted) requests_.erase(drop->request);
}

// Summaries are copied with their pages.
void HostChosenCache::copy(PageId source, PageId target, cudaStream_t stream) {
  pages_.copy(source, target, stream);
  summaries_.copy(raw(source), raw(target));
}

void HostChosenCache::warm_up(uint32_t size, const StepStream&, StepRows* rows) {
  rows_.clear(), dense_.clear();
  attention_.add_warm_up(size, rows);
  if (spec_.layers_dense > 0) dense_.warm_up(size);
}

}  // namespace kvtwin::cuda
