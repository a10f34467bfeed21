#include "engine/cpu/dual_cells.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin::cpu {
namespace {

constexpr uint32_t kGone = UINT32_MAX;  // stands where a cell was that has been packed elsewhere

}  // namespace

// Whole groups, from int4 pages to int2 ones.
std::vector<DualCells::Aged> DualCells::age(std::span<const CellAgeing> ageings) {
  std::vector<Aged> out;
  std::vector<Place> from;
  std::vector<uint32_t> positions;
  for (const CellAgeing& ageing : ageings) {
    KVT_CHECK(is_int2(raw(ageing.target)) && !is_int2(raw(ageing.source)));
    std::vector<uint32_t>& cells = pages_[raw(ageing.source)];
    for (uint32_t position = ageing.position; position < ageing.position + ageing.count; ++position) {
      const auto cell = std::find(cells.begin(), cells.end(), position);
      KVT_CHECK(cell != cells.end());
      *cell = kGone;
      from.push_back({raw(ageing.source), static_cast<uint32_t>(cell - cells.begin())});
      positions.push_back(position);
    }
    if (from.size() < page_tokens_) continue;
    KVT_CHECK(from.size() == page_tokens_);
    out.push_back({ageing.target, std::move(from)});
    pages_[raw(ageing.target)] = std::move(positions);
    from.clear();
    positions.clear();
  }
  KVT_CHECK(from.empty());
  return out;
}

void DualCells::place(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
                      std::vector<Share>* shares, std::vector<PageId>* taken) {
  shares->resize(entries.size());
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
    grants.taken = taken;
    for (const PageGrant& grant : launch.grants) {
      if (grant.offset == offset && grant.entry == i) grants.pages.push_back(grant.page);
    }
    Share& share = (*shares)[i];
    Call& call = calls_.at(entry.call);
    KVT_CHECK(call.places.size() == entry.context);
    share.chunk = entry.kind == EntryKind::kChunk;
    share.row = row;
    share.tokens = entry.tokens;
    share.context = entry.context;
    share.waiting_page = call.waiting_page;
    row += entry.tokens;
    share.actions.clear();
    share.packed.clear();
    if (share.chunk) share.history = call.places;  // as it was stored before
    place_rows(launch, i, entry, &grants, &call, &share);
    KVT_CHECK(grants.next == grants.pages.size());
    if (!share.chunk) share.history = call.places;
  }
}

// Of each page, the cells of the frame for which it is named (commands.h, Adoption).
void DualCells::adopt(const PlanEntry& entry, std::span<const PageId> pages) {
  const auto [found_call, fresh] = calls_.try_emplace(entry.call);
  Call& call = found_call->second;
  const uint32_t waiting_page = fresh ? take_waiting_page() : call.waiting_page;
  call = {};
  call.waiting_page = waiting_page;
  call.places.resize(entry.context);
  uint32_t frame = 0, found = 0;
  for (const PageId page : pages) {
    if (page == kNoPage) {
      ++frame;
      continue;
    }
    const std::vector<uint32_t>& cells = pages_[raw(page)];
    for (uint32_t slot = 0; slot < cells.size(); ++slot) {
      if (cells[slot] / page_tokens_ != frame) continue;
      call.places.at(cells[slot]) = {raw(page), slot};
      ++found;
    }
  }
  KVT_CHECK(found == entry.context);
}

uint32_t DualCells::take_waiting_page() {
  if (waiting_free_.empty()) waiting_free_.push_back(pages_gpu_ + waiting_made_++);
  const uint32_t page = waiting_free_.back();
  waiting_free_.pop_back();
  return page;
}

PageId DualCells::take(Grants* grants) {
  KVT_CHECK(grants->next < grants->pages.size());
  const PageId page = grants->pages[grants->next++];
  KVT_CHECK(raw(page) < pages_gpu_);
  grants->taken->push_back(page);
  pages_[raw(page)].clear();
  return page;
}

void DualCells::put_4(uint32_t position, Grants* grants, Call* call, Action action, Share* share) {
  if (call->in_tail == 0) {
    call->tail = take(grants);
    KVT_CHECK(!is_int2(raw(call->tail)));
  }
  action.page = call->tail;
  action.slot = call->in_tail;
  action.position = position;
  share->actions.push_back(action);
  call->places[position] = {raw(call->tail), call->in_tail};
  pages_[raw(call->tail)].push_back(position);
  call->in_tail = (call->in_tail + 1) % page_tokens_;
}

// A whole group goes to the int2 page that was granted for it; without one, and what is left at the prompt's
// end, to int4.
void DualCells::place_waiting(Grants* grants, Call* call, Share* share) {
  const bool packs = call->waiting.size() == page_tokens_ && grants->next < grants->pages.size() &&
                     is_int2(raw(grants->pages[grants->next]));
  if (packs) {
    const PageId page = take(grants);
    share->actions.push_back({Action::Kind::kPack, 0, page, 0, static_cast<uint32_t>(share->packed.size())});
    share->packed.insert(share->packed.end(), call->waiting.begin(), call->waiting.end());
    for (uint32_t slot = 0; slot < page_tokens_; ++slot) {
      call->places[call->waiting[slot]] = {raw(page), slot};
      pages_[raw(page)].push_back(call->waiting[slot]);
    }
  } else {
    for (uint32_t slot = 0; slot < call->waiting.size(); ++slot)
      put_4(call->waiting[slot], grants, call, {Action::Kind::kMove, slot}, share);
  }
  call->waiting.clear();
}

void DualCells::place_rows(const LaunchStep& launch, uint32_t index, const PlanEntry& entry, Grants* grants,
                           Call* call, Share* share) {
  uint32_t position = entry.context, row = share->row;
  call->places.resize(position + entry.tokens);
  if (!share->chunk) return put_4(position, grants, call, {Action::Kind::kPut, row}, share);
  for (const CellRun& run : launch.formats) {
    if (run.entry != index) continue;
    if (run.count == 0) place_waiting(grants, call, share);
    for (uint32_t i = 0; i < run.count; ++i, ++position, ++row) {
      if (run.four) {
        put_4(position, grants, call, {Action::Kind::kPut, row}, share);
        continue;
      }
      const auto slot = static_cast<uint32_t>(call->waiting.size());
      call->waiting.push_back(position);
      call->places[position] = {call->waiting_page, slot};
      share->actions.push_back({Action::Kind::kStage, row, {}, slot, position});
      if (call->waiting.size() == page_tokens_) place_waiting(grants, call, share);
    }
  }
  KVT_CHECK(position == entry.context + entry.tokens);
}

void DualCells::told(const Command& command) {
  // A preempted call may still be in a step that was launched before; if it comes back, it begins anew.
  const auto* drop = std::get_if<DropCallState>(&command);
  if (drop == nullptr || drop->reason == DropCallState::Reason::kPreempted) return;
  const auto call = calls_.find(drop->call);
  if (call == calls_.end()) return;
  waiting_free_.push_back(call->second.waiting_page);
  calls_.erase(call);
}

}  // namespace kvtwin::cpu
