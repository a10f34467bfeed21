#include "engine/cuda/retrieval/factored_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/device/cuda_check.h"
#include "engine/cuda/page_choosing.h"

namespace kvtwin::cuda {
namespace {

constexpr uint32_t kTile = 16;  // rebuild_keys takes ranks in multiples of it

}  // namespace

std::optional<std::string> check_factored(RetrievalKind kind, const RetrievalSpec& spec,
                                          const RecallCopies& copies, const LlmSpec& llm,
                                          uint32_t page_tokens) {
  const uint32_t width = llm.kv_heads * llm.head_dim, chosen = selectable_pages(spec, page_tokens);
  const bool shadow = kind == RetrievalKind::kRecallsValues;
  if (shadow && spec.rank > width)
    return fmt::format("rank is {}, but the keys of a layer have {} numbers; use at most so many", spec.rank,
                       width);
  if (shadow && chosen > kChosenMax)
    return fmt::format("{} pages are chosen; up to {} are computed", chosen, kChosenMax);
  if (copies.layout != HostPageLayout::kHnd) return "host_layout is nhd; hnd is computed";
  return std::nullopt;
}

FactoredCache::FactoredCache(const KvMemory& memory, const LlmSpec& llm, const RetrievedOptions& options)
    : memory_(memory),
      llm_(llm),
      kind_(options.kind),
      spec_(options.spec),
      shape_(spec_, memory.page_tokens),
      prefix_cache_(options.prefix_cache),
      unit_directions_(options.unit_directions),
      selected_tokens_(options.selected_tokens),
      rope_(rope_frequencies(llm)),
      rank_(div_ceil(spec_.rank, kTile) * kTile),
      columns_(cpu::PartialKeys(llm, spec_.columns_q32).columns()),
      dense_llm_(llm),
      prefix_rows_(memory.page_tokens, uint64_t{llm.query_heads} * llm.head_dim,
                   uint64_t{llm.kv_heads} * llm.head_dim) {
  dense_llm_.layers = spec_.layers_dense;
}

Result<OwnedCache> FactoredCache::make(const KvMemory& memory, const LlmSpec& llm,
                                       const RetrievedOptions& options) {
  KVT_CHECK(!check_retrieved(options.kind, options.spec, options.copies, llm, memory.page_tokens));
  KVT_CHECK(options.spec.layers_dense < llm.layers);
  std::unique_ptr<FactoredCache> out(new FactoredCache(memory, llm, options));
  Result<std::unique_ptr<OrderedStreams>> order = OrderedStreams::make(llm.layers, options.tests);
  if (!order) return tl::unexpected<Error>(order.error());
  out->order_ = std::move(*order);
  if (Result<void> ok = out->allocate(); !ok) return tl::unexpected<Error>(ok.error());
  if (Result<void> ok = out->allocate_choices(); !ok) return tl::unexpected<Error>(ok.error());
  return OwnedCache(out.release());
}

namespace {

template <typename T>
Result<void> take(Result<T> made, T* to) {
  if (!made) return tl::unexpected<Error>(made.error());
  *to = std::move(*made);
  return {};
}

}  // namespace

Result<void> FactoredCache::allocate() {
  const uint32_t page = memory_.page_tokens, heads = llm_.kv_heads;
  const uint64_t rows = memory_.rows_max, each = sizeof(__nv_bfloat16);
  const std::string shape = fmt::format("{} rows", rows);
  if (auto ok = take(DevicePages::make(llm_, page, memory_.pages_gpu, memory_.pages_host), &pages_); !ok)
    return ok;
  if (auto ok =
          take(RowAttention::make(&llm_, {page, heads, memory_.pages_gpu, memory_.rows_max}), &attention_);
      !ok)
    return ok;
  const struct {
    Buffer* buffer;
    Buffer::Kind kind;
    uint64_t bytes;
    const char* what;
  } all[] = {{&keys_, Buffer::Kind::kDevice, rows * kv_width() * each, "keys of rows"},
             {&queries_, Buffer::Kind::kDevice, rows * q_width() * each, "queries of the next layer"},
             {&fetched_, Buffer::Kind::kPinned, rows * (q_width() + kv_width()) * each, "rows on the host"},
             {&inv_freq_, Buffer::Kind::kDevice, rope_.inverse.size() * sizeof(float), "angles"}};
  for (const auto& one : all) {
    if (auto ok = take(Buffer::make(one.kind, one.bytes, one.what, shape), one.buffer); !ok) return ok;
  }
  must(cudaMemcpy(inv_freq_.as<float>(), rope_.inverse.data(), inv_freq_.bytes(), cudaMemcpyHostToDevice),
       "copy of angles", inv_freq_.bytes());
  if (spec_.layers_dense == 0) return {};
  if (auto ok = take(DevicePages::make(dense_llm_, page, memory_.pages_host, 0), &resident_); !ok) return ok;
  return take(DenseLayers::make(&llm_, page, memory_.pages_host, memory_.rows_max), &dense_);
}

Result<void> FactoredCache::allocate_choices() {
  const uint32_t states = 2 * memory_.requests_max, heads = llm_.kv_heads, tokens = memory_.page_tokens;
  const uint64_t directions = shadow() ? uint64_t{rank_} * kv_width() * sizeof(__nv_bfloat16)
                                       : uint64_t{columns_} * kv_width() * sizeof(float);
  const uint64_t page = shadow() ? uint64_t{tokens} * rank_ * sizeof(__nv_bfloat16)
                                 : uint64_t{tokens} * heads * columns_ * sizeof(float);
  if (auto ok = take(LayeredArray::make(choosers(), directions, states, "directions of keys"), &directions_);
      !ok)
    return ok;
  if (auto ok =
          take(LayeredArray::make(choosers(), page, memory_.pages_host, "factors of keys"), &factor_pages_);
      !ok)
    return ok;
  if (!shadow()) return {};
  const uint64_t stays = uint64_t{heads} * std::max(shape_.extra, 1u) * sizeof(uint32_t);
  if (auto ok = take(LayeredArray::make(choosers(), stays, states, "pages that stay"), &stays_); !ok)
    return ok;
  ChoiceShape shape = choice_shape(llm_, spec_, heads, shape_.selectable);
  shape.first_host = memory_.pages_gpu;
  uint32_t candidates = memory_.pages_host;
  if (llm_.context_window > 0) candidates = std::min(candidates, pages_of(llm_.context_window));
  return take(RetrievalMemory::make(llm_, shape,
                                    {.layers = choosers(),
                                     .owners = memory_.pages_gpu + memory_.pages_host,
                                     .slots = true,
                                     .ahead = false,
                                     .requests = memory_.requests_max,
                                     .candidates = candidates}),
              &choices_);
}

HostPool FactoredCache::host_layer(uint32_t layer) const {
  return {pages_.host_layer(layer),
          pages_.page_bytes() / sizeof(__nv_bfloat16),
          HostPageLayout::kHnd,
          memory_.page_tokens,
          llm_.kv_heads,
          llm_.head_dim};
}

void FactoredCache::begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
                          const StepStream& on, StepRows* rows) {
  KVT_CHECK(launch.compressions.empty());
  order_->compute_on(on);
  order_->wait(StreamKind::kCompute, {Edge::kOffloaded, 0});
  rows_.clear(), sealed_.clear(), retained_.clear(), dense_.clear();
  take_pages(launch, offset, on.stream);
  reserve_requests();
  for (const PlanEntry& entry : entries) add_entry(entry, rows);
  at_once_ =
      std::any_of(rows_.begin(), rows_.end(), [](const Row& row) { return !row.request->in_resident; });
  for (const Row& row : rows_) {
    if (shadow() && row.chooses && !row.request->filled) outgrow(row.request, on.stream);
  }
  send_lists(on);
  for (const StreamKind stream_kind : {StreamKind::kCompute, StreamKind::kRecall})
    order_->delay_for_tests(stream_kind);
}

void FactoredCache::reserve_requests() {
  directions_.reserve(states_);
  factor_pages_.reserve(factors_);
  if (!shadow()) return;
  choices_.reserve_states(states_);
  stays_.reserve(states_);
}

void FactoredCache::plan(const DeviceRows& rows, const StepStream& on) {
  attention_.plan(rows, pages_.layer(0), on.stream);
  if (spec_.layers_dense == 0) return;
  dense_.plan(resident_.layer(0), on.stream);
}

void FactoredCache::end(const LaunchStep&, uint32_t, std::span<const PlanEntry> entries, const StepStream& on,
                        DataOutcomes* values) {
  order_->step_ended();
  values->recalls.assign(llm_.layers, {});
  for (uint32_t layer = spec_.layers_dense; layer < llm_.layers; ++layer) {
    LayerRecall& out = values->recalls[layer];
    const auto rows = static_cast<uint32_t>(choice_rows_.size());
    if (rows > 0) {
      out.heads = rows * llm_.kv_heads, out.chosen = out.heads * shape_.selectable;
      out.blocking = choices_.counts_on_host()[chooser(layer)].before;
    }
    const auto* const numbers = numbers_host_.as<const uint32_t>() + chooser(layer) * token_rows_.size();
    for (size_t i = 0; i < token_rows_.size(); ++i) {
      const uint32_t pages = pages_of(numbers[i]) * llm_.kv_heads;  // rounded up: reports are in pages
      out.blocking += pages, out.chosen += pages, out.heads += llm_.kv_heads;
    }
    if (rows_needed() && !at_once_) keep_rows(layer, chooser(layer));
  }
  entering_.clear();
  for (const PlanEntry& entry : entries) {
    Request& request = requests_.at(entry.request);
    if (!entry.samples || request.in_resident) continue;
    const uint32_t pages = pages_of(entry.context + entry.tokens);
    KVT_CHECK(request.pages.size() == pages && request.host_copies.size() == pages);
    request.in_resident = true;
    entering_.push_back(&request);
  }
  enter_residents(on);
  for (const PlanEntry& entry : entries) {
    Request& request = requests_.at(entry.request);
    const uint32_t tokens = entry.context + entry.tokens;
    if (shadow() && request.in_resident && request_retrieves(spec_, memory_.page_tokens, tokens + 1))
      put_factors(&request, on.stream);
  }
  must(cudaStreamSynchronize(on.stream), "factors of keys");
  order_->step_ended();
}

void FactoredCache::notify(const Command& command) {
  // A preempted request may still be in a step that is already launched. That step's writes precede those of
  // any later step.
  const auto* drop = std::get_if<DropRequestState>(&command);
  if (drop == nullptr || drop->reason == DropRequestState::Reason::kPreempted) return;
  const auto found = requests_.find(drop->request);
  if (found == requests_.end()) return;
  free_states_.push_back(found->second.state);
  const std::vector<uint32_t>& factors = found->second.factors;
  free_factors_.insert(free_factors_.end(), factors.begin(), factors.end());
  requests_.erase(found);
}

// Summaries and factors belong to host pages, which stay where they are.
void FactoredCache::copy(PageId source, PageId target, cudaStream_t stream) {
  order_->hold(stream, {Edge::kOffloaded, 0});  // a prefix's pages may still be on their way there
  pages_.copy(source, target, stream);
}

void FactoredCache::warm_up(uint32_t size, const StepStream& on, StepRows* rows) {
  order_->compute_on(on);
  rows_.clear(), sealed_.clear(), retained_.clear(), dense_.clear();
  attention_.add_warm_up(size, rows);
  if (spec_.layers_dense > 0) dense_.warm_up(size);
  send_lists(on);
}

}  // namespace kvtwin::cuda
