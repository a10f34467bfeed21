#include "engine/cuda/retrieval/retrieved_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/device/cuda_check.h"
#include "engine/cuda/page_choosing.h"
#include "engine/cuda/retrieval/factored_cache.h"

namespace kvtwin::cuda {
namespace {

constexpr uint32_t kStagedMax = 64;  // pages in the staging buffer

}  // namespace

std::optional<std::string> check_retrieved(RetrievalKind kind, const RetrievalSpec& spec,
                                           const RecallCopies& copies, const LlmSpec& llm,
                                           uint32_t page_tokens) {
  if (llm.head_dim != 64 && llm.head_dim != 128)
    return fmt::format("heads have {} numbers; 64 and 128 are computed", llm.head_dim);
  if (llm.query_heads / llm.kv_heads > 8)
    return fmt::format("{} query heads share a KV head; up to 8 are computed",
                       llm.query_heads / llm.kv_heads);
  if (page_tokens % 16 != 0)
    return fmt::format("memory.page_tokens is {}; a multiple of 16 is computed", page_tokens);
  if (kind == RetrievalKind::kRecallsValues || kind == RetrievalKind::kRecallsTokens)
    return check_factored(kind, spec, copies, llm, page_tokens);
  const uint32_t chosen = selectable_pages(spec, page_tokens);
  if (chosen > kChosenMax)
    return fmt::format("{} pages are chosen; up to {} are computed", chosen, kChosenMax);
  if (spec.extra_tokens > 0) return fmt::format("extra_tokens is {}; 0 is computed", spec.extra_tokens);
  return std::nullopt;
}

Result<OwnedCache> make_retrieved(const RetrievedOptions& options, const KvMemory& memory,
                                  const LlmSpec& llm) {
  if (options.kind == RetrievalKind::kRecallsValues || options.kind == RetrievalKind::kRecallsTokens)
    return FactoredCache::make(memory, llm, options);
  return RetrievedCache::make(memory, llm, options);
}

RetrievedCache::RetrievedCache(const KvMemory& memory, const LlmSpec& llm, const RetrievedOptions& options)
    : memory_(memory),
      llm_(llm),
      kind_(options.kind),
      spec_(options.spec),
      copies_(options.copies),
      shape_(spec_, memory.page_tokens),
      offloaded_(options.kind != RetrievalKind::kPagesOnGpu),
      prefix_cache_(options.prefix_cache),
      dense_llm_(llm) {
  dense_llm_.layers = spec_.layers_dense;
}

RetrievedCache::~RetrievedCache() = default;

Result<OwnedCache> RetrievedCache::make(const KvMemory& memory, const LlmSpec& llm,
                                        const RetrievedOptions& options) {
  KVT_CHECK(!check_retrieved(options.kind, options.spec, options.copies, llm, memory.page_tokens));
  KVT_CHECK(options.kind != RetrievalKind::kReadsAll && options.spec.layers_dense < llm.layers);
  std::unique_ptr<RetrievedCache> out(new RetrievedCache(memory, llm, options));
  Result<std::unique_ptr<OrderedStreams>> order = OrderedStreams::make(llm.layers, options.tests);
  if (!order) return tl::unexpected<Error>(order.error());
  out->order_ = std::move(*order);
  if (Result<void> ok = out->allocate(); !ok) return tl::unexpected<Error>(ok.error());
  return OwnedCache(out.release());
}

Result<void> RetrievedCache::allocate() {
  const auto take = [](auto made, auto* to) -> Result<void> {
    if (!made) return tl::unexpected<Error>(made.error());
    *to = std::move(*made);
    return {};
  };
  const uint32_t host = offloaded_ ? memory_.pages_host : 0, page = memory_.page_tokens;
  if (auto ok = take(DevicePages::make(llm_, page, memory_.pages_gpu, memory_.pages_host), &pages_); !ok)
    return ok;
  if (auto ok = take(RowAttention::make(&llm_, {page, llm_.kv_heads, memory_.pages_gpu, memory_.rows_max}),
                     &attention_);
      !ok)
    return ok;
  if (spec_.layers_dense > 0) {
    if (auto ok = take(DevicePages::make(dense_llm_, page, resident() ? host : 0, 0), &resident_); !ok)
      return ok;
    const uint32_t pages = resident() ? host : memory_.pages_gpu;
    if (auto ok = take(DenseLayers::make(&llm_, page, pages, memory_.rows_max), &dense_); !ok) return ok;
  }
  if (offloaded_ && copies_.layout == HostPageLayout::kNhd) {
    if (auto ok = take(Buffer::make(Buffer::Kind::kDevice, pages_.part_bytes() * kStagedMax,
                                    "pages on their way to the host", fmt::format("{} pages", kStagedMax)),
                       &staging_);
        !ok)
      return ok;
  }
  if (offloaded_ && prefix_cache_ && copies_.layout == HostPageLayout::kNhd) {
    const uint64_t moves = uint64_t{memory_.pages_gpu} * llm_.kv_heads;
    if (auto ok = take(Buffer::make(Buffer::Kind::kPinned, kFetchHeader + moves * sizeof(RecallMove),
                                    "lists of prefixes", fmt::format("{} pages", memory_.pages_gpu)),
                       &fetched_);
        !ok)
      return ok;
  }
  ChoiceShape shape = choice_shape(llm_, spec_, llm_.kv_heads, shape_.selectable);
  shape.tau = static_cast<double>(spec_.tau_q32) / static_cast<double>(kOneQ32);
  if (offloaded_) shape.first_host = memory_.pages_gpu;
  if (offloaded_ && copies_.copy != HostCopy::kKernel) {
    const CopiedRecall::Size size{host_layer(0), shape_.selectable, llm_.layers - spec_.layers_dense,
                                  memory_.requests_max, ahead()};
    if (auto ok = take(CopiedRecall::make(copies_, size), &copied_); !ok) return ok;
  }
  // The longest context: of the model, or what there are pages for.
  uint32_t candidates = offloaded_ ? memory_.pages_host : memory_.pages_gpu;
  if (llm_.context_window > 0) candidates = std::min(candidates, pages_of(llm_.context_window));
  // Lists of all pages, and what each request adds to the lists of a step.
  const uint64_t lists =
      (uint64_t{memory_.pages_gpu} + memory_.pages_host) * sizeof(uint32_t) + (uint64_t{1} << 20);
  const uint64_t pages = uint64_t{memory_.pages_gpu} + memory_.pages_host;
  // A request's pages to choose from, and its slots.
  tables_ = DeviceTables(2 * pages + uint64_t{memory_.requests_max} * 2 * shape_.selectable, pages);
  for (DeviceLists* const list : {&upload_, &enter_upload_}) {
    if (memory_.requests_max > 0) list->reserve(lists);
  }
  return take(RetrievalMemory::make(llm_, shape,
                                    {llm_.layers - spec_.layers_dense, memory_.pages_gpu + memory_.pages_host,
                                     offloaded_, ahead(), memory_.requests_max, candidates}),
              &choices_);
}

HostPool RetrievedCache::host_layer(uint32_t layer) const {
  return {pages_.host_layer(layer),
          pages_.page_bytes() / sizeof(__nv_bfloat16),
          copies_.layout,
          memory_.page_tokens,
          llm_.kv_heads,
          llm_.head_dim};
}

void RetrievedCache::begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
                           const StepStream& on, StepRows* rows) {
  KVT_CHECK(launch.compressions.empty());
  order_->compute_on(on);
  if (offloaded_) order_->wait(StreamKind::kCompute, {Edge::kOffloaded, 0});
  clear_lists();
  take_pages(launch, offset, on.stream);
  for (const PlanEntry& entry : entries) add_entry(entry, rows);
  const auto decodes = [](const PlanEntry& entry) { return entry.kind == EntryKind::kDecode; };
  decodes_ = std::all_of(entries.begin(), entries.end(), decodes) ? static_cast<uint32_t>(entries.size()) : 0;
  choosing_ = static_cast<uint32_t>(choice_rows_.size()), fills_ = !sealed_.empty();
  if (decodes_ > 0 && padded_forms() > 0) pad(launch.tokens_padded, rows);
  send_lists(on);
  for (const StreamKind stream_kind : {StreamKind::kCompute, StreamKind::kSelect, StreamKind::kRecall})
    order_->delay_for_tests(stream_kind);
}

void RetrievedCache::plan(const DeviceRows& rows, const StepStream& on) {
  attention_.plan(rows, pages_.layer(0), on.stream);
  if (spec_.layers_dense == 0) return;
  dense_.plan(resident() ? resident_.layer(0) : pages_.layer(0), on.stream);
}

// Numbers of pages to choose from stand behind everything else: how many there are is no launch parameter.
bool RetrievedCache::repeats(StepGraphKey* graph_key) const {
  if (copied_ != nullptr) return false;
  if (decodes_ == 0 || graph_key->rows.chunks_count > 0 || graph_key->rows.other_rows > 0) return false;
  graph_key->add(choices_.place());
  upload_.add_to(graph_key, at_.choices);
  upload_.add_to(graph_key, at_.retained);
  upload_.add_to(graph_key, at_.forced_outcome);
  upload_.add_to(graph_key, at_.summaries);
  graph_key->add(tables_.on_device());
  return spec_.layers_dense == 0 || dense_.repeats(graph_key);
}

std::vector<cudaStream_t> RetrievedCache::streams() const {
  if (!ahead()) return {};
  return {order_->stream(StreamKind::kSelect), order_->stream(StreamKind::kRecall)};
}

void RetrievedCache::end(const LaunchStep&, uint32_t, std::span<const PlanEntry> entries,
                         const StepStream& on, DataOutcomes* values) {
  order_->step_ended();
  recall_deferred();
  values->recalls.assign(llm_.layers, {});
  const uint32_t rows = choosing_;
  // Counts are behind the last layer's choice, which is long over: it runs beside that layer.
  if (ahead() && rows > 0) order_->wait_for(StreamKind::kSelect);
  for (uint32_t layer = spec_.layers_dense; layer < llm_.layers && rows > 0; ++layer) {
    LayerRecall& layer_recall = values->recalls[layer];
    layer_recall.heads = rows * llm_.kv_heads;
    layer_recall.chosen = rows * llm_.kv_heads * shape_.selectable;
    if (!offloaded_) continue;
    const ChoiceCounts& counts = choices_.counts_on_host()[chooser(layer)];
    layer_recall.blocking = counts.before, layer_recall.background = counts.after,
    layer_recall.corrected = counts.turned;
  }
  entering_.clear();
  for (const PlanEntry& entry : entries) {
    Request& request = requests_.at(entry.request);
    if (!offloaded_ || !entry.samples || request.in_resident) continue;
    request.in_resident = true;
    const uint32_t pages = pages_of(entry.context + entry.tokens);
    KVT_CHECK(request.pages.size() == pages && request.host_copies.size() == pages);
    if (pages > shape_.slots) entering_.push_back(&request);
  }
  enter_residents(on);
  for (const PlanEntry& entry : entries) {
    Request& request = requests_.at(entry.request);
    if (!offloaded_ || !request.in_resident || !entry.samples) continue;
    const uint32_t held =
        gpu_pages_held(spec_, memory_.page_tokens, static_cast<uint32_t>(request.host_copies.size()));
    if (held < request.pages.size()) request.pages.resize(held);
  }
}

void RetrievedCache::notify(const Command& command) {
  const auto* drop = std::get_if<DropRequestState>(&command);
  if (drop == nullptr) return;
  const auto found = requests_.find(drop->request);
  if (found == requests_.end()) return;
  // From here on its slots belong to other requests.
  if (offloaded_) order_->wait_for(StreamKind::kRecall);
  if (drop->reason == DropRequestState::Reason::kPreempted) {
    found->second.preempted = true;
    return;
  }
  if (offloaded_) free_states_.push_back(found->second.state);
  free_tables(&found->second);
  requests_.erase(found);
}

// Summaries travel with their pages. (Beside resident pages they belong to homes, which stay where they are.)
void RetrievedCache::copy(PageId source, PageId target, cudaStream_t stream) {
  KVT_CHECK(!offloaded_);
  pages_.copy(source, target, stream);
  const uint64_t page = choices_.summary_bytes(), layer = choices_.summaries_of_layer_bytes();
  char* const first = reinterpret_cast<char*>(choices_.summaries(0));
  for (uint32_t l = 0; l < llm_.layers - spec_.layers_dense; ++l) {
    char* const own = first + l * layer;
    must(cudaMemcpyAsync(own + raw(target) * page, own + raw(source) * page, page, cudaMemcpyDeviceToDevice,
                         stream),
         "copy of a page's summary", page, [&] { return fmt::format("page {}", raw(source)); });
  }
}

// Beside resident pages: prefixes, from their homes to the GPU.
void RetrievedCache::copy_all(std::span<const PageId> source, std::span<const PageId> target,
                              cudaStream_t stream) {
  if (!offloaded_) return KvCache::copy_all(source, target, stream);
  order_->hold(stream, {Edge::kOffloaded, 0});  // they may still be on their way there
  if (copies_.layout == HostPageLayout::kNhd) return fetch(source, target, stream);
  for (size_t i = 0; i < source.size(); ++i) pages_.copy(source[i], target[i], stream);
}

}  // namespace kvtwin::cuda
