// Formats by tag (TriAxialKV): the Core over two pools of pages (dual_pool.h).
//
// A call's `pages`, its lease and the prefix index are made of frames, of which there are always enough; what
// is short is pages. How many a step takes follows from the bits of the prompt's tokens, which are known when
// the call comes. An int2 page is to be had if it is free or only cached prefixes need it; else 2-bit cells
// spill to int4. If an int4 page is missing, cached prefixes go, then the newest call.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/policy/core_state.h"

namespace kvtwin {

// Pages of one format that the call may take: what others have set aside is theirs.
uint32_t Core::State::cells_available(const CallState& call, bool four) const {
  const uint64_t had = uint64_t{dual->pages_free(four)} + dual->pages_loose(four);
  const uint64_t others = four ? reserved_total - call.reserved : reserved_2_total - call.reserved_2;
  return static_cast<uint32_t>(had > others ? had - others : 0);
}

Core::State::Admitted Core::State::admit_to_pools(Slot slot) {
  CallState& call = calls[slot];
  const bool reserves = config.admission == AdmissionKind::kFullReservation;
  Match match;
  if (call.pages_known > 0 && !call.reuse_barred) {
    const uint32_t frames_most = std::min((call.known() - 1) / config.page_tokens, call.pages_known);
    match = index.acquire(call.name_space, call.identity, frames_most);
  }
  const uint32_t cached = match.lease.pages * config.page_tokens;
  frames.clear();
  adopting.clear();
  index.gpu_pages(match.lease, &frames);
  dual->begin(cached, frames, &call.cells, &adopting);
  const uint32_t tokens = entry_tokens(call, cached, false);
  uint32_t covered = tokens;
  if (config.admission == AdmissionKind::kFullPrompt) covered = call.known() - cached;
  if (reserves) covered = call.prompt + call.output - cached;
  const DualDemand demand = dual->demand(call.cells, covered, cells_available(call, false));
  // The lease itself may have taken what others have set aside.
  const bool robs = reserved_total > uint64_t{dual->pages_free(true)} + dual->pages_loose(true) ||
                    reserved_2_total > uint64_t{dual->pages_free(false)} + dual->pages_loose(false);
  if (tokens == 0 || robs ||
      uint64_t{demand.pages_4} + config.watermark_pages > cells_available(call, true)) {
    DualPool::reset(&call.cells);
    index.release(match.lease, false);
    // Pages that hold its prefix hold cells of others too: alone, it fits without them (RequestFit).
    if (!running.empty() || match.lease.pages == 0 || tokens == 0) return Admitted::kBlocked;
    call.reuse_barred = true;
    return admit_to_pools(slot);
  }
  if (config.policies.precision_spec.ageing == Ageing::kRequantise && cached > 0) {
    age_prefix(call, match.lease, demand.pages_2);
    adopting.clear();
    dual->begin(cached, frames, &call.cells, &adopting);
  }
  let_in(slot, cached);
  call.lease = match.lease;
  call.settled = UINT32_MAX;
  cells_held += cells_of(call, cached);
  pages_running += call.cells.adopted_pages;
  if (reserves) {
    call.reserved = demand.pages_4;
    call.reserved_2 = demand.pages_2;
    reserved_total += demand.pages_4;
    reserved_2_total += demand.pages_2;
  }
  const size_t granted_before = granted.size();
  const bool grown = grow_cells(&call, tokens);
  KVT_CHECK(grown);
  add_entry(slot, tokens, granted_before);
  return Admitted::kYes;
}

// Turns have grown old since the prefix was written (METHODS 4.6). What gets 2 bits by now is requantised, as
// far as int2 pages are free: nobody loses a cached prefix for it, and what is left over waits for the next
// turn. Cells that another call reads stay as they are. REQUIRES: `frames` are the prefix's.
void Core::State::age_prefix(const CallState& call, const Lease& prefix, uint32_t pages_2_wanted) {
  alone.clear();
  for (uint32_t i = 0; i < prefix.pages; ++i) alone.push_back(index.sole(prefix, i) ? 1 : 0);
  const uint32_t left = cells_available(call, false) - pages_2_wanted;
  dual->age(call.cells, frames, alone, std::min(left, dual->pages_free(false)), &ageings);
}

// As grow().
bool Core::State::grow_cells(CallState* call, uint32_t tokens) {
  const DualDemand demand = dual->demand(call->cells, tokens, cells_available(*call, false));
  if (demand.pages_4 > cells_available(*call, true)) return false;
  make_room(demand);
  add_frames(call, call->kv + tokens);
  call->narrow = call->cells.adopted_cells_2 + call->cells.pages_2 * config.page_tokens;
  newly_taken.clear();
  entry_bits.clear();
  dual->append(tokens, demand.pages_2, frames_of(*call), &call->cells, &newly_taken, &entry_bits);
  KVT_CHECK(newly_taken.size() == demand.pages_2 + demand.pages_4);
  for (const PageId page : newly_taken) granted.push_back({page, 0});
  const uint32_t from_reserve = std::min(call->reserved_2, demand.pages_2);
  call->reserved_2 -= from_reserve;
  reserved_2_total -= from_reserve;
  pages_running += demand.pages_2;
  note_taken(call, demand.pages_4);
  return true;
}

// Evicts until so many pages are free. REQUIRES: so many are free or loose.
void Core::State::make_room(const DualDemand& demand) {
  const auto short_of = [&] {
    return dual->pages_free(false) < demand.pages_2 || dual->pages_free(true) < demand.pages_4;
  };
  if (!short_of()) return;
  evicted_now = true;
  for (uint32_t i = 0; short_of() || (i < config.evict_batch_pages && index.pages_evictable() > 0); ++i)
    give_page(index.evict_gpu_page());
}

void Core::State::add_frames(CallState* call, uint32_t tokens) {
  while (uint64_t{call->pages_span()} * config.page_tokens < tokens) {
    const PageId frame = gpu.acquire();
    dual->hold({&frame, 1}, true);
    call->pages.push_back(frame);
  }
}

// Further steps of a stretch: decoded cells, whose pages grant_ahead_cells() has taken.
void Core::State::extend_cells(CallState* call, uint32_t tokens) {
  add_frames(call, call->kv + tokens);
  newly_taken.clear();
  entry_bits.clear();
  dual->append(tokens, 0, frames_of(*call), &call->cells, &newly_taken, &entry_bits);
  KVT_CHECK(newly_taken.empty());
}

// Takes decoded cells back, as if they had never been planned.
void Core::State::shrink_cells(CallState* call, uint32_t tokens) {
  dual->truncate(tokens, frames_of(*call), &call->cells);
  while (uint64_t{call->pages_span() - 1} * config.page_tokens >= tokens) {
    give_page(call->pages.back());
    call->pages.pop_back();
  }
}

// As grant_ahead().
uint32_t Core::State::grant_ahead_cells(uint32_t steps, Launch* launch) {
  const uint32_t page = config.page_tokens;
  crossings.clear();
  for (uint32_t entry = 0; entry < launch->members.size(); ++entry) {
    const DualPool::Call& cells = calls[launch->members[entry].slot].cells;
    const auto room = static_cast<uint32_t>(cells.pages_4.size()) * page;
    crossings.push_back({room - cells.cells_4 + 1, entry});
  }
  std::sort(crossings.begin(), crossings.end());
  for (uint32_t window = 0; window < steps; window += page) {
    for (const auto& [first, entry] : crossings) {
      const uint32_t offset = first + window;
      if (offset >= steps) break;
      if (dual->pages_free(true) == 0) {
        give_back_grants(launch, offset);
        return offset;
      }
      CallState& call = calls[launch->members[entry].slot];
      launch->grants.push_back({offset, entry, dual->take_ahead(&call.cells)});
      note_taken(&call, 1);
    }
  }
  return steps;
}

// X-4, and what two pools add to the invariants.
void Core::State::check_reserves() const {
  if (!dual) {
    KVT_CHECK(reserved_total <= uint64_t{gpu.pages_free()} + pages_loose());
    return;
  }
  uint64_t own = 0, reserved_2 = 0;
  for (const CallState& call : calls) {
    if (call.phase == CallState::Phase::kUnused) continue;
    reserved_2 += call.reserved_2;
    own += call.pages.size();
  }
  KVT_CHECK(reserved_2 == reserved_2_total);
  dual->check_invariants(own + index.pages_gpu() - index.pages_evictable());
  for (const bool four : {false, true}) {
    KVT_CHECK((four ? reserved_total : reserved_2_total) <=
              uint64_t{dual->pages_free(four)} + dual->pages_loose(four));
  }
}

}  // namespace kvtwin
