// What the rows of a step are, to a RetrievedCache: which slots they write, which they read, and what they
// choose among.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/cpu/imposed.h"
#include "engine/cuda/retrieved_cache.h"

namespace kvtwin::cuda {

RetrievedCache::Call& RetrievedCache::new_call(CallId id) {
  const auto found = calls_.find(id);
  uint32_t state = 0;
  if (found != calls_.end()) {
    state = found->second.state;
  } else if (arena_ && !free_states_.empty()) {
    state = free_states_.back();
    free_states_.pop_back();
  } else if (arena_) {
    state = states_++;
  }
  Call& call = calls_[id];
  call = {};
  call.state = state;
  return call;
}

void RetrievedCache::take_pages(const LaunchStep& launch, uint32_t offset, cudaStream_t stream) {
  if (offset == 0) {
    for (const PlanEntry& entry : launch.entries) {
      if (entry.first) new_call(entry.call);
    }
    for (const Adoption& adoption : launch.adoptions) {
      if (arena_) {
        begin_with(adoption);
        continue;
      }
      for (const PageId page : adoption.pages) calls_.at(adoption.call).pages.push_back(raw(page));
    }
  }
  for (const PageGrant& grant : launch.grants) {
    if (grant.offset != offset) continue;
    Call& call = calls_.at(launch.entries[grant.entry].call);
    const uint32_t page = raw(grant.page);
    if (page < memory_.pages_gpu) {
      if (memory_.poison) pages_.poison(grant.page, stream);
      call.pages.push_back(page);
      continue;
    }
    KVT_CHECK(arena_);
    call.homes.push_back(page);
    if (!resident()) continue;
    const uint32_t number = page - memory_.pages_gpu;
    if (memory_.poison) resident_.poison(PageId{number}, stream);
    call.resident.push_back(number);
  }
}

void RetrievedCache::begin_with(const Adoption& adoption) {
  KVT_CHECK(prefix_cache_);
  Call& call = calls_.at(adoption.call);
  const cpu::ArenaPrefix prefix = cpu::arena_prefix(adoption, memory_.pages_gpu);
  for (const PageId page : prefix.pages) call.pages.push_back(raw(page));
  for (const PageId home : prefix.homes) {
    call.homes.push_back(raw(home));
    if (resident()) call.resident.push_back(raw(home) - memory_.pages_gpu);
  }
}

void RetrievedCache::add_entry(const PlanEntry& entry, StepRows* rows) {
  KVT_CHECK(entry.kind == EntryKind::kChunk || entry.kind == EntryKind::kDecode);
  Call& call = calls_.at(entry.call);
  // Placement arena: until the step that completes its prompt has ended, a call has all its pages.
  const bool may_choose = arena_ ? call.in_arena : entry.kind == EntryKind::kDecode;
  KVT_CHECK(!call.in_arena || entry.tokens == 1);
  const uint32_t page_tokens = memory_.page_tokens, context = entry.context - call.gone;
  const uint32_t end = context + entry.tokens;
  const auto first = static_cast<uint32_t>(rows->positions.size());
  for (uint32_t cell = context; cell < end; ++cell) {
    const uint32_t number = cell / page_tokens;
    const uint32_t page = call.pages.at(call.in_arena ? shape_.slot_of(number) : number);
    rows->positions.push_back(cell + call.gone);
    rows->slots.push_back({page * llm_.kv_heads, cell % page_tokens});
    if ((cell + 1) % page_tokens == 0) sealed_.push_back({page, arena_ ? call.homes.at(number) : page});
  }
  if (arena_) kept_.push_back({first + entry.tokens - 1, call.state});
  if (spec_.layers_dense > 0)
    dense_.add(resident() ? call.resident : call.pages, context, entry.tokens, call.gone);
  if (may_choose && call_retrieves(spec_, page_tokens, end)) {
    KVT_CHECK(entry.tokens == 1);
    return add_choice(&call, first, context, rows);
  }
  const auto table = static_cast<uint32_t>(rows->pages.size());
  rows->pages.insert(rows->pages.end(), call.pages.begin(), call.pages.begin() + pages_of(end));
  attention_.add(first, table, context, entry.tokens, rows);
}

// Each KV head has a table of its own: sinks, what is chosen (written on the device, layer by layer), window.
void RetrievedCache::add_choice(Call* call, uint32_t row, uint32_t cell, StepRows* rows) {
  const uint32_t pages = pages_of(cell + 1), length = shape_.sinks + shape_.selectable + shape_.window;
  const uint32_t tokens = (length - 1) * memory_.page_tokens + cell % memory_.page_tokens + 1;
  ChoiceRow choice = choice_of(*call, pages);
  choice.row = row;
  choice.table = static_cast<uint32_t>(rows->pages.size()) + shape_.sinks, choice.table_stride = length;
  if (arena_ && !call->chosen) {
    choice.held = call->filled ? Held::kUnsure : Held::kFirst;
  } else if (arena_) {
    choice.held = spec_.speculation ? Held::kTrusted : Held::kUnsure;
  }
  choice.no_more = call->preempted ? 1 : 0;
  call->chosen = true;
  for (uint32_t head = 0; head < llm_.kv_heads; ++head) {
    const auto table = static_cast<uint32_t>(rows->pages.size());
    rows->pages.insert(rows->pages.end(), call->pages.begin(), call->pages.begin() + shape_.sinks);
    rows->pages.resize(rows->pages.size() + shape_.selectable);
    for (uint32_t page = pages - shape_.window; page < pages; ++page)
      rows->pages.push_back(call->pages.at(arena_ ? shape_.slot_of(page) : page));
    const uint32_t group = llm_.query_heads / llm_.kv_heads;
    rows->decodes.push_back({row * llm_.query_heads + head * group, table, tokens, head});
  }
  rows->decode_cells += tokens;
  choice_rows_.push_back(choice);
}

// Of its full pages outside of sinks and window. Slots hold nothing yet.
ChoiceRow RetrievedCache::choice_of(const Call& call, uint32_t pages) {
  const std::vector<uint32_t>& owners = arena_ ? call.homes : call.pages;
  const auto list = [&](const std::vector<uint32_t>& from, uint32_t first, uint32_t count) {
    const auto at = static_cast<uint32_t>(lists_.size());
    lists_.insert(lists_.end(), from.begin() + first, from.begin() + first + count);
    return at;
  };
  ChoiceRow out;
  out.state = call.state;
  out.candidates = pages - shape_.window - shape_.sinks;
  KVT_CHECK(out.candidates >= shape_.selectable && shape_.sinks + out.candidates <= owners.size());
  out.owners = list(owners, shape_.sinks, out.candidates);
  if (arena_) out.slots = list(call.pages, shape_.sinks, shape_.selectable);
  return out;
}

// What is imposed on the heads that choose, layer by layer.
void RetrievedCache::deal_recalls() {
  imposed_.clear();
  if (!arena_ || given_ == nullptr || given_->recalls.size() != llm_.layers) return;
  std::vector<cpu::ImposedRow> rows;
  for (const ChoiceRow& row : choice_rows_)
    rows.push_back(
        {row.held == Held::kTrusted, std::min(shape_.selectable, row.candidates - shape_.selectable)});
  const size_t each = rows.size() * llm_.kv_heads;
  imposed_.resize(each * (llm_.layers - spec_.layers_dense));
  for (uint32_t layer = spec_.layers_dense; layer < llm_.layers; ++layer) {
    cpu::deal_recall(given_->recalls[layer], rows, llm_.kv_heads, spec_.speculation,
                     std::span(imposed_).subspan(chooser(layer) * each, each));
  }
}

void RetrievedCache::send_lists(cudaStream_t stream) {
  uint32_t most = 0;
  for (const ChoiceRow& row : choice_rows_) most = std::max(most, row.candidates);
  choices_.reserve_states(states_);
  choices_.reserve_rows(static_cast<uint32_t>(choice_rows_.size()), most);
  deal_recalls();
  upload_.clear();
  pack(kept_, &upload_, &at_);
  upload_.send(stream);
  if (spec_.layers_dense > 0) dense_.send(stream);
}

// In steps of decodes alone, first what is as long in every step of so many rows (what a kernel writes
// nothing for makes up for pages that no row fills), then what is not.
void RetrievedCache::pack(const std::vector<QueryKept>& kept, DeviceLists* upload, Lists* at) const {
  std::vector<SummaryPage> summaries;
  std::vector<uint32_t> staged;
  for (const Sealed& page : sealed_) {
    staged.push_back(page.page);
    for (uint32_t head = 0; head < llm_.kv_heads; ++head)
      summaries.push_back(
          {page.page * llm_.kv_heads + head, memory_.page_tokens, page.owner * llm_.kv_heads + head});
  }
  if (!summaries.empty())
    summaries.resize(std::max(summaries.size(), size_t{decodes_} * llm_.kv_heads), SummaryPage{});
  at->choices = upload->add(choice_rows_);
  at->kept = upload->add(kept);
  at->imposed = upload->add(imposed_);
  at->summaries = upload->add(summaries);
  at->lists = upload->add(lists_);
  at->staged = upload->add(staged);
}

void RetrievedCache::warm_up(uint32_t size, const StepStream& on, StepRows* rows) {
  order_->compute_on(on.stream);
  choice_rows_.clear(), lists_.clear(), sealed_.clear(), kept_.clear(), dense_.clear();
  decodes_ = 0;
  attention_.add_warm_up(size, rows);
  if (spec_.layers_dense > 0) dense_.warm_up(size);
  send_lists(on.stream);
}

}  // namespace kvtwin::cuda
