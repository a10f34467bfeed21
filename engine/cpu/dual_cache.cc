#include "engine/cpu/dual_cache.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/cpu/packed_rows.h"
#include "kernels/rope_append.h"

namespace kvtwin::cpu {
namespace {

constexpr uint32_t kStagingPages = 1 << 16;  // address space: calls with a prompt under way

}  // namespace

Result<std::unique_ptr<KvCache>> DualCache::make(const KvMemory& memory, const LlmSpec& llm,
                                                 const DualFormat& format) {
  KVT_CHECK(memory.pages_host == 0 && format.pages_int2 <= memory.pages_gpu);
  const PageShape shape{memory.page_tokens, llm.head_dim, format.group};
  const PackedPool pools[] = {{Format::kInt2, format.pages_int2},
                              {Format::kInt4, memory.pages_gpu - format.pages_int2}};
  Result<PackedStore> store = PackedStore::make(
      llm, shape, pools, div_ceil(format.step_tokens_max, memory.page_tokens) + uint64_t{kStagingPages});
  if (!store) return tl::unexpected<Mistake>(store.error());
  return std::unique_ptr<KvCache>(new DualCache(memory, llm, format, std::move(*store)));
}

void DualCache::begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries) {
  KVT_CHECK(launch.compressions.empty());  // of other layouts than this one
  if (offset == 0) {
    for (const DualCells::Aged& aged : cells_.age(launch.ageings)) pack_again(aged);
  }
  taken_.clear();
  cells_.place(launch, offset, entries, &shares_, &taken_);
  KVT_CHECK(cells_.waiting_pages() <= kStagingPages);
  for (const PageId page : taken_) {
    if (memory_.poison) store_.poison(page);
  }
  reads_.resize(shares_.size());
  for (size_t i = 0; i < shares_.size(); ++i) plan_reads(shares_[i], &reads_[i]);
  KVT_CHECK(shares_.empty() || shares_.back().row + shares_.back().tokens <= format_.step_tokens_max);
}

// Cells wait behind the scratch pages of a step's rows.
uint32_t DualCache::stored_page(uint32_t page) const {
  if (page < memory_.pages_gpu) return page;
  const uint32_t rows = div_ceil(format_.step_tokens_max, memory_.page_tokens);
  return static_cast<uint32_t>(store_.scratch()) + rows + page - memory_.pages_gpu;
}

void DualCache::pack_again(const DualCells::Aged& aged) {
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

// By position, as few runs as they make; a chunk's own rows are those in scratch.
void DualCache::plan_reads(const DualCells::Share& share, Reads* reads) const {
  reads->runs.clear();
  for (const Place& place : share.history) {
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
  if (share.chunk) scratch_runs(store_, share.row, share.tokens, &reads->runs);
  reads->rows.clear();
  for (uint32_t r = 0; r < share.tokens; ++r) reads->rows.push_back({reads->runs, share.context + r + 1});
}

void DualCache::attend(uint32_t layer, float* q, float* k, const float* v, float* out) {
  const uint64_t query = uint64_t{llm_.query_heads} * llm_.head_dim;
  const uint64_t width = uint64_t{llm_.kv_heads} * llm_.head_dim;
  const kernels::KvPages pages = store_.layer(layer);
  const float scale = 1.0f / std::sqrt(static_cast<float>(llm_.head_dim));
  const kernels::RopeTable rope{rope_.inverse, rope_.scale};
  const uint32_t rows = shares_.empty() ? 0 : shares_.back().row + shares_.back().tokens;
  values_.resize(rows * width);
  round_to_bf16(v, values_);
  // In the order of the plan: who adopts what another call of this step fills stands behind it.
  for (size_t i = 0; i < shares_.size(); ++i) {
    const DualCells::Share& share = shares_[i];
    for (uint32_t row = share.row; row < share.row + share.tokens; ++row) {
      const uint32_t position = share.context + row - share.row;
      kernels::rope_ref(rope, position, llm_.query_heads, llm_.head_dim, q + row * query);
      kernels::rope_ref(rope, position, llm_.kv_heads, llm_.head_dim, k + row * width);
      round_to_bf16(k + row * width, {k + row * width, width});
      for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
        const uint64_t at = row * width + uint64_t{h} * llm_.head_dim;
        set_scratch(&store_, row, layer, h, k + at, values_.data() + at);
      }
    }
    if (!share.chunk) perform(layer, share, k, values_.data());
    kernels::attention_ref(pages, {0, llm_.kv_heads}, llm_.query_heads, scale, q + share.row * query,
                           reads_[i].rows, out + share.row * query, nullptr);
    if (share.chunk) perform(layer, share, k, values_.data());
  }
}

void DualCache::perform(uint32_t layer, const DualCells::Share& share, const float* k, const float* v) {
  const uint64_t width = uint64_t{llm_.kv_heads} * llm_.head_dim;
  const kernels::KvPages pages = store_.layer(layer);
  using Kind = DualCells::Action::Kind;
  const uint32_t waiting = stored_page(share.waiting_page);
  for (const DualCells::Action& action : share.actions) {
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

void DualCache::told(const Command& command) {
  KVT_CHECK(!std::holds_alternative<StartTransfer>(command));  // no other tier
  cells_.told(command);
}

}  // namespace kvtwin::cpu
