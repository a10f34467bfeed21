#include "engine/cpu/dual_cache.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/cpu/packed_rows.h"
#include "kernels/rope_append.h"

namespace kvtwin::cpu {
namespace {

constexpr uint32_t kStagingPages = 1 << 16;  // address space: calls with a prompt under way
constexpr uint32_t kGone = UINT32_MAX;       // stands where a cell was that has been packed elsewhere

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
  if (offset == 0) requantise(launch.ageings);
  shares_.resize(entries.size());
  uint32_t row = 0;
  for (uint32_t i = 0; i < entries.size(); ++i) {
    const PlanEntry& entry = entries[i];
    KVT_CHECK(entry.kind == EntryKind::kChunk || entry.kind == EntryKind::kDecode);
    if (offset == 0 && entry.first) {
      std::span<const PageId> adopted;
      for (const Adoption& adoption : launch.adoptions) {
        if (adoption.call == entry.call) adopted = adoption.pages;
      }
      adopt(entry, adopted);
    }
    Grants grants;
    for (const PageGrant& grant : launch.grants) {
      if (grant.offset == offset && grant.entry == i) grants.pages.push_back(grant.page);
    }
    Share& share = shares_[i];
    Call& call = calls_.at(entry.call);
    KVT_CHECK(call.places.size() == entry.context);
    share.chunk = entry.kind == EntryKind::kChunk;
    share.row = row;
    share.tokens = entry.tokens;
    share.context = entry.context;
    share.staging = call.staging;
    row += entry.tokens;
    share.actions.clear();
    share.runs.clear();
    if (share.chunk) {
      plan_history(call, entry.context, &share);
      scratch_runs(store_, share.row, entry.tokens, &share.runs);
    }
    place_rows(launch, i, entry, &grants, &call, &share);
    KVT_CHECK(grants.next == grants.pages.size());
    if (!share.chunk) plan_history(call, entry.context + 1, &share);
    share.rows.clear();
    for (uint32_t r = 0; r < entry.tokens; ++r) share.rows.push_back({share.runs, entry.context + r + 1});
  }
  KVT_CHECK(row <= format_.step_tokens_max);
}

// Whole groups, from int4 pages to int2 ones.
void DualCache::requantise(std::span<const CellAgeing> ageings) {
  std::vector<Place> from;
  std::vector<uint32_t> positions;
  for (const CellAgeing& ageing : ageings) {
    KVT_CHECK(is_int2(ageing.target) && !is_int2(ageing.source));
    std::vector<uint32_t>& cells = pages_[raw(ageing.source)];
    for (uint32_t position = ageing.position; position < ageing.position + ageing.count; ++position) {
      const auto cell = std::find(cells.begin(), cells.end(), position);
      KVT_CHECK(cell != cells.end());
      *cell = kGone;
      from.push_back({raw(ageing.source), static_cast<uint32_t>(cell - cells.begin())});
      positions.push_back(position);
    }
    if (from.size() < memory_.page_tokens) continue;
    KVT_CHECK(from.size() == memory_.page_tokens);
    take(ageing.target);
    pack_again(from, ageing.target);
    pages_[raw(ageing.target)] = positions;
    from.clear();
    positions.clear();
  }
  KVT_CHECK(from.empty());
}

void DualCache::pack_again(std::span<const Place> from, PageId target) {
  const uint32_t dim = llm_.head_dim;
  std::vector<float> keys(from.size() * dim);
  for (uint32_t layer = 0; layer < llm_.layers; ++layer) {
    const kernels::KvPages pages = store_.layer(layer);
    for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
      for (uint32_t i = 0; i < from.size(); ++i) {
        const uint64_t at = pages.at(from[i].page, h, from[i].slot);
        std::copy_n(pages.keys + at, dim, keys.data() + size_t{i} * dim);
        store_.put_value(target, i, layer, h, pages.values + at);
      }
      for (uint32_t i = 0; i < from.size(); i += format_.group)
        store_.put_keys(target, i, layer, h, keys.data() + size_t{i} * dim);
    }
  }
}

// Of each page, the cells of the frame for which it is named (commands.h, Adoption).
void DualCache::adopt(const PlanEntry& entry, std::span<const PageId> pages) {
  const auto [found_call, fresh] = calls_.try_emplace(entry.call);
  Call& call = found_call->second;
  const uint32_t staging = fresh ? take_staging() : call.staging;
  call = {};
  call.staging = staging;
  call.places.resize(entry.context);
  uint32_t frame = 0, found = 0;
  for (const PageId page : pages) {
    if (page == kNoPage) {
      ++frame;
      continue;
    }
    const std::vector<uint32_t>& cells = pages_[raw(page)];
    for (uint32_t slot = 0; slot < cells.size(); ++slot) {
      if (cells[slot] / memory_.page_tokens != frame) continue;
      call.places.at(cells[slot]) = {raw(page), slot};
      ++found;
    }
  }
  KVT_CHECK(found == entry.context);
}

// Behind the scratch pages of a step's rows.
uint32_t DualCache::take_staging() {
  if (staging_free_.empty()) {
    KVT_CHECK(staging_made_ < kStagingPages);
    const uint32_t rows = div_ceil(format_.step_tokens_max, memory_.page_tokens);
    staging_free_.push_back(static_cast<uint32_t>(store_.scratch()) + rows + staging_made_++);
  }
  const uint32_t page = staging_free_.back();
  staging_free_.pop_back();
  return page;
}

// The first `cells` cells, by position, as few runs as they make.
void DualCache::plan_history(const Call& call, uint32_t cells, Share* share) {
  for (uint32_t position = 0; position < cells; ++position) {
    const Place& place = call.places[position];
    if (!share->runs.empty()) {
      kernels::ReadRun& last = share->runs.back();
      if (last.page == place.page && last.first + last.count == place.slot) {
        ++last.count;
        continue;
      }
    }
    share->runs.push_back({place.page, place.slot, 1});
  }
}

void DualCache::take(PageId page) {
  KVT_CHECK(raw(page) < memory_.pages_gpu);
  if (memory_.poison) store_.poison(page);
  pages_[raw(page)].clear();
}

void DualCache::put_4(uint32_t position, Grants* grants, Call* call, Action action, Share* share) {
  if (call->in_tail == 0) {
    KVT_CHECK(grants->next < grants->pages.size());
    call->tail = grants->pages[grants->next++];
    KVT_CHECK(!is_int2(call->tail));
    take(call->tail);
  }
  action.page = call->tail;
  action.slot = call->in_tail;
  share->actions.push_back(action);
  call->places[position] = {raw(call->tail), call->in_tail};
  pages_[raw(call->tail)].push_back(position);
  call->in_tail = (call->in_tail + 1) % memory_.page_tokens;
}

// A whole group goes to the int2 page that was granted for it; without one, and what is left at the prompt's
// end, to int4.
void DualCache::place_waiting(Grants* grants, Call* call, Share* share) {
  const bool packs = call->waiting.size() == memory_.page_tokens && grants->next < grants->pages.size() &&
                     is_int2(grants->pages[grants->next]);
  if (packs) {
    const PageId page = grants->pages[grants->next++];
    take(page);
    share->actions.push_back({Action::Kind::kPack, 0, page, 0});
    for (uint32_t slot = 0; slot < memory_.page_tokens; ++slot) {
      call->places[call->waiting[slot]] = {raw(page), slot};
      pages_[raw(page)].push_back(call->waiting[slot]);
    }
  } else {
    for (uint32_t slot = 0; slot < call->waiting.size(); ++slot)
      put_4(call->waiting[slot], grants, call, {Action::Kind::kMove, slot, {}, 0}, share);
  }
  call->waiting.clear();
}

void DualCache::place_rows(const LaunchStep& launch, uint32_t index, const PlanEntry& entry, Grants* grants,
                           Call* call, Share* share) {
  uint32_t position = entry.context, row = share->row;
  call->places.resize(position + entry.tokens);
  if (!share->chunk) return put_4(position, grants, call, {Action::Kind::kPut, row, {}, 0}, share);
  for (const CellRun& run : launch.formats) {
    if (run.entry != index) continue;
    if (run.count == 0) place_waiting(grants, call, share);
    for (uint32_t i = 0; i < run.count; ++i, ++position, ++row) {
      if (run.four) {
        put_4(position, grants, call, {Action::Kind::kPut, row, {}, 0}, share);
        continue;
      }
      const auto slot = static_cast<uint32_t>(call->waiting.size());
      call->waiting.push_back(position);
      call->places[position] = {call->staging, slot};
      share->actions.push_back({Action::Kind::kStage, row, {}, slot});
      if (call->waiting.size() == memory_.page_tokens) place_waiting(grants, call, share);
    }
  }
  KVT_CHECK(position == entry.context + entry.tokens);
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
  for (const Share& share : shares_) {
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
                           share.rows, out + share.row * query, nullptr);
    if (share.chunk) perform(layer, share, k, values_.data());
  }
}

void DualCache::perform(uint32_t layer, const Share& share, const float* k, const float* v) {
  const uint64_t width = uint64_t{llm_.kv_heads} * llm_.head_dim;
  const kernels::KvPages pages = store_.layer(layer);
  for (const Action& action : share.actions) {
    for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
      const uint64_t at = action.row * width + uint64_t{h} * llm_.head_dim;
      const uint64_t staged = pages.at(share.staging, h, 0);
      switch (action.kind) {
        case Action::Kind::kStage:
          store_.set_exact(share.staging, action.slot, layer, h, k + at, v + at);
          break;
        case Action::Kind::kPut:
          store_.put(action.page, action.slot, layer, h, k + at, v + at);
          break;
        case Action::Kind::kMove: {
          const uint64_t from = staged + uint64_t{action.row} * llm_.head_dim;
          store_.put(action.page, action.slot, layer, h, pages.keys + from, pages.values + from);
          break;
        }
        case Action::Kind::kPack:
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
  // A preempted call may still be in a step that was launched before; if it comes back, it begins anew.
  const auto* drop = std::get_if<DropCallState>(&command);
  if (drop == nullptr || drop->reason == DropCallState::Reason::kPreempted) return;
  const auto call = calls_.find(drop->call);
  if (call == calls_.end()) return;
  staging_free_.push_back(call->second.staging);
  calls_.erase(call);
}

}  // namespace kvtwin::cpu
