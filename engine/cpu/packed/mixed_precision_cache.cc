#include "engine/cpu/packed/mixed_precision_cache.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/cpu/packed/packed_rows.h"
#include "kernels/cache_ops/rope_append.h"

namespace kvtwin::cpu {
namespace {

constexpr uint32_t kStagingPages = 1 << 16;  // address space for requests with an unfinished prompt

}  // namespace

Result<std::unique_ptr<KvCache>> MixedPrecisionCache::make(const KvMemory& memory, const LlmSpec& llm,
                                                           const MixedPrecisionFormat& format) {
  KVT_CHECK(format.pages_int2 <= memory.pages_gpu);
  const PageShape shape{memory.page_tokens, llm.head_dim, format.group};
  const PackedPool pools[] = {{Format::kInt2, format.pages_int2},
                              {Format::kInt4, memory.pages_gpu - format.pages_int2},
                              {Format::kInt2, memory.pages_host},
                              {Format::kInt4, memory.pages_host}};
  Result<PackedStore> store = PackedStore::make(
      llm, shape, pools, div_ceil(format.step_tokens_max, memory.page_tokens) + uint64_t{kStagingPages});
  if (!store) return tl::unexpected<Error>(store.error());
  return std::unique_ptr<KvCache>(new MixedPrecisionCache(memory, llm, format, std::move(*store)));
}

void MixedPrecisionCache::begin(const LaunchStep& launch, uint32_t offset,
                                std::span<const PlanEntry> entries) {
  KVT_CHECK(launch.compressions.empty());  // only other layouts compress
  if (offset == 0) {
    for (const MixedPrecisionEntries::Aged& aged : kv_entries_.age(launch.requantisations)) pack_again(aged);
  }
  taken_.clear();
  kv_entries_.place(launch, offset, entries, &request_parts_, &taken_);
  KVT_CHECK(kv_entries_.waiting_pages() <= kStagingPages);
  for (const PageId page : taken_) {
    if (memory_.poison) store_.poison(page);
  }
  reads_.resize(request_parts_.size());
  for (size_t i = 0; i < request_parts_.size(); ++i) plan_reads(request_parts_[i], &reads_[i]);
  KVT_CHECK(request_parts_.empty() ||
            request_parts_.back().row + request_parts_.back().tokens <= format_.step_tokens_max);
}

// Waiting pages follow the scratch pages of a step's rows.
uint32_t MixedPrecisionCache::stored_page(uint32_t page) const {
  if (page < memory_.pages_gpu) return page;
  const uint32_t rows = div_ceil(format_.step_tokens_max, memory_.page_tokens);
  return static_cast<uint32_t>(store_.scratch()) + rows + page - memory_.pages_gpu;
}

void MixedPrecisionCache::pack_again(const MixedPrecisionEntries::Aged& aged) {
  const uint32_t dim = llm_.head_dim;
  if (memory_.poison) store_.poison(aged.target);
  std::vector<float> keys(aged.from.size() * dim);
  for (uint32_t layer = 0; layer < llm_.layers; ++layer) {
    const kernels::KvPages pages = store_.layer(layer);
    for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
      for (uint32_t i = 0; i < aged.from.size(); ++i) {
        const uint64_t at = pages.at(aged.from[i].page, h, aged.from[i].slot);
        std::copy_n(pages.keys + at, dim, keys.data() + size_t{i} * dim);
        store_.put_value(aged.target, i, layer, h, pages.values + at);
      }
      for (uint32_t i = 0; i < aged.from.size(); i += format_.group)
        store_.put_keys(aged.target, i, layer, h, keys.data() + size_t{i} * dim);
    }
  }
}

// Reads by position, in as few runs as possible; a chunk reads its own rows from scratch.
void MixedPrecisionCache::plan_reads(const MixedPrecisionEntries::RequestPart& request_part,
                                     Reads* reads) const {
  reads->runs.clear();
  for (const Place& place : request_part.history) {
    const uint32_t page = stored_page(place.page);
    if (!reads->runs.empty()) {
      kernels::ReadRun& last = reads->runs.back();
      if (last.page == page && last.first + last.count == place.slot) {
        ++last.count;
        continue;
      }
    }
    reads->runs.push_back({page, place.slot, 1});
  }
  if (request_part.chunk) scratch_runs(store_, request_part.row, request_part.tokens, &reads->runs);
  reads->rows.clear();
  for (uint32_t r = 0; r < request_part.tokens; ++r)
    reads->rows.push_back({reads->runs, request_part.context + r + 1});
}

void MixedPrecisionCache::attend(uint32_t layer, float* q, float* k, const float* v, float* out) {
  const uint64_t query = uint64_t{llm_.query_heads} * llm_.head_dim;
  const uint64_t width = uint64_t{llm_.kv_heads} * llm_.head_dim;
  const kernels::KvPages pages = store_.layer(layer);
  const float scale = 1.0f / std::sqrt(static_cast<float>(llm_.head_dim));
  const kernels::RopeTable rope{rope_.inverse, rope_.scale};
  const uint32_t rows = request_parts_.empty() ? 0 : request_parts_.back().row + request_parts_.back().tokens;
  values_.resize(rows * width);
  round_to_bf16(v, values_);
  // In the order of the plan: a request that reuses pages which this step fills comes after the one that
  // fills them.
  for (size_t i = 0; i < request_parts_.size(); ++i) {
    const MixedPrecisionEntries::RequestPart& request_part = request_parts_[i];
    for (uint32_t row = request_part.row; row < request_part.row + request_part.tokens; ++row) {
      const uint32_t position = request_part.context + row - request_part.row;
      kernels::rope_ref(rope, position, llm_.query_heads, llm_.head_dim, q + row * query);
      kernels::rope_ref(rope, position, llm_.kv_heads, llm_.head_dim, k + row * width);
      round_to_bf16(k + row * width, {k + row * width, width});
      for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
        const uint64_t at = row * width + uint64_t{h} * llm_.head_dim;
        set_scratch(&store_, row, layer, h, k + at, values_.data() + at);
      }
    }
    if (!request_part.chunk) perform(layer, request_part, k, values_.data());
    kernels::attention_ref(pages, {0, llm_.kv_heads}, llm_.query_heads, scale, q + request_part.row * query,
                           reads_[i].rows, out + request_part.row * query, nullptr);
    if (request_part.chunk) perform(layer, request_part, k, values_.data());
  }
}

void MixedPrecisionCache::perform(uint32_t layer, const MixedPrecisionEntries::RequestPart& request_part,
                                  const float* k, const float* v) {
  const uint64_t width = uint64_t{llm_.kv_heads} * llm_.head_dim;
  const kernels::KvPages pages = store_.layer(layer);
  using Kind = MixedPrecisionEntries::Action::Kind;
  const uint32_t waiting = stored_page(request_part.waiting_page);
  for (const MixedPrecisionEntries::Action& action : request_part.actions) {
    for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
      const uint64_t at = action.row * width + uint64_t{h} * llm_.head_dim;
      const uint64_t staged = pages.at(waiting, h, 0);
      switch (action.kind) {
        case Kind::kStage:
          store_.set_exact(waiting, action.slot, layer, h, k + at, v + at);
          break;
        case Kind::kPut:
          store_.put(action.page, action.slot, layer, h, k + at, v + at);
          break;
        case Kind::kMove: {
          const uint64_t from = staged + uint64_t{action.row} * llm_.head_dim;
          store_.put(action.page, action.slot, layer, h, pages.keys + from, pages.values + from);
          break;
        }
        case Kind::kPack:
          for (uint32_t slot = 0; slot < memory_.page_tokens; ++slot) {
            const uint64_t from = staged + uint64_t{slot} * llm_.head_dim;
            if (slot % format_.group == 0) store_.put_keys(action.page, slot, layer, h, pages.keys + from);
            store_.put_value(action.page, slot, layer, h, pages.values + from);
          }
          break;
      }
    }
  }
}

// A host page has room for a page of either format.
PageId MixedPrecisionCache::stored_copy(PageId page, bool int2) const {
  return raw(page) < memory_.pages_gpu || int2 ? page : PageId{raw(page) + memory_.pages_host};
}

void MixedPrecisionCache::copy_pages(const StartTransfer& transfer) {
  for (size_t i = 0; i < transfer.source.size(); ++i) {
    const PageId source = transfer.source[i], target = transfer.target[i];
    const bool int2 = kv_entries_.is_int2(std::min(raw(source), raw(target)));  // of the page on the GPU
    store_.copy(stored_copy(source, int2), stored_copy(target, int2));
  }
}

void MixedPrecisionCache::notify(const Command& command) {
  if (const auto* transfer = std::get_if<StartTransfer>(&command)) copy_pages(*transfer);
  kv_entries_.notify(command);
}

}  // namespace kvtwin::cpu
