// Placement arena (METHODS 6, 7.8 FreeKV): every page of a call has its place on the host from the moment it
// is begun, so that it can be offloaded as soon as it is full. The GPU holds the whole prompt until the step
// that completes it; from then on an arena, whose content the world chooses step by step.
//
// Page grants name both: a GPU page joins the call's arena, a host page (by its number) is the home of the
// next page of its context. What is given back at the prompt's end may be granted to the next step: that step
// begins when the pages have been offloaded (the step graph's port offload_done). With a prefix cache, homes
// may be another call's: core_arena_prefix.cc.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/planted.h"
#include "engine/policy/core_state.h"
#include "engine/policy/registry.h"

namespace kvtwin {

// What the call would hold with `tokens` tokens of KV.
Core::State::PageDemand Core::State::arena_demand(const CallState& call, uint32_t tokens) const {
  const uint32_t pages = div_ceil(tokens - call.dead, config.page_tokens);
  const RetrievalSpec& spec = config.policies.retrieval_spec;
  return {call.in_arena ? gpu_pages_held(spec, config.page_tokens, pages) : pages, pages};
}

// All it will ever hold at once.
Core::State::PageDemand Core::State::arena_reservation(const CallState& call) const {
  const PagesNeeded needed = fit.needed_in_arena(call.prompt, call.output);
  return {static_cast<uint32_t>(needed.gpu), static_cast<uint32_t>(needed.host)};
}

bool Core::State::arena_has_room(const CallState& call, const PageDemand& more) const {
  const uint64_t others = reserved_host_total - call.reserved_host;
  const uint64_t homes = uint64_t{host->pages_free()} + index.pages_evictable();
  return more.gpu <= pages_available(call) && more.host + others <= homes;
}

bool Core::State::grow_arena(CallState* call, uint32_t tokens) {
  const PageDemand demand = arena_demand(*call, call->kv + tokens);
  const auto had_gpu = static_cast<uint32_t>(call->pages.size());
  const uint32_t had_host = table_pages(*call);
  const PageDemand more{demand.gpu - std::min(demand.gpu, had_gpu),
                        demand.host - std::min(demand.host, had_host)};
  if (!arena_has_room(*call, more)) return false;
  for (uint32_t left = more.gpu; left > 0; --left) {
    call->pages.push_back(take_page(left));
    granted.push_back({call->pages.back(), 0});
  }
  for (uint32_t left = more.host; left > 0; --left) {
    call->host_pages.push_back(take_home(left));
    granted.push_back({call->host_pages.back(), 0});
  }
  const uint32_t from_reserve = std::min(call->reserved, more.gpu);
  call->reserved -= from_reserve;
  reserved_total -= from_reserve;
  const uint32_t from_host_reserve = std::min(call->reserved_host, more.host);
  call->reserved_host -= from_host_reserve;
  reserved_host_total -= from_host_reserve;
  pages_running += more.host;
  return true;
}

// As admit().
Core::State::Admitted Core::State::admit_to_arena(Slot slot) {
  CallState& call = calls[slot];
  Lease prefix;
  if (call.pages_known > 0 && !call.recall_barred) {
    const uint32_t pages_max = std::min((call.known() - 1) / config.page_tokens, call.pages_known);
    prefix = index.acquire(call.name_space, call.identity, pages_max).lease;
  }
  const uint32_t cached = prefix.pages * config.page_tokens;
  const uint32_t tokens = std::min(call.known() - cached, prefill_budget());
  const bool reserves = config.admission == AdmissionKind::kFullReservation;
  const uint32_t covered = config.admission == AdmissionKind::kFullPrompt ? call.known() : cached + tokens;
  PageDemand demand = reserves ? arena_reservation(call) : arena_demand(call, covered);
  demand.host -= prefix.pages;  // they have their homes
  const bool unsafe =
      prefix.pages > 0 && preempted_until > done && !KVT_PLANTED(early_fetch);  // see recall_first()
  if (unsafe || !arena_has_room(call, {demand.gpu + config.watermark_pages, demand.host})) {
    admission_open = admission_open || unsafe;
    index.release(prefix, false);
    return Admitted::kBlocked;
  }
  if (reserves) {
    call.reserved = demand.gpu;
    call.reserved_host = demand.host;
    reserved_total += demand.gpu;
    reserved_host_total += demand.host;
  }
  if (prefix.pages > 0) {
    fetch_prefix(slot, prefix);
    return Admitted::kElsewhere;
  }
  let_in(slot, 0);
  begin_retention(&call);
  const size_t granted_before = granted.size();
  const bool grown = grow_arena(&call, tokens);
  KVT_CHECK(grown);
  add_entry(slot, tokens, granted_before);
  return Admitted::kYes;
}

// The step that is being launched drops cells of the prompt that it completes. What is left moves together
// (layout compact) and goes to the first of the call's homes; from now on its pages are pages of what is
// left.
void Core::State::drop_before_arena(CallState* call) {
  const uint32_t left = retention.cells_after(0, call->kv);
  KVT_CHECK(call->dead == 0 && left <= call->kv);
  call->dead = call->kv - left;
  cells_held -= call->dead;
}

// The step that is being launched completes the prompt: what does not fit the arena goes back, and homes of
// what was dropped.
void Core::State::shrink_to_arena(CallState* call) {
  call->in_arena = true;
  const PageDemand keeps = arena_demand(*call, call->kv);
  uint64_t surplus = 0;
  for (; table_pages(*call) > keeps.host; ++surplus, --pages_running) {
    host->release(call->host_pages.back(), index.tick());
    call->host_pages.pop_back();
  }
  for (; call->pages.size() > keeps.gpu; ++surplus) {
    give_page(call->pages.back());
    call->pages.pop_back();
  }
  if (surplus > 0) note({kShrunk, launched, raw(call->id), surplus});
  if (surplus > 0) preempted_until = launched + 1;  // no prefix may be copied there before that step's end
  if (config.admission != AdmissionKind::kFullReservation) return;
  const PageDemand final = arena_demand(*call, call->prompt + call->output);
  reserved_total -= call->reserved;
  call->reserved = final.gpu - keeps.gpu;
  reserved_total += call->reserved;
  reserved_host_total -= call->reserved_host;
  call->reserved_host = final.host - keeps.host;
  reserved_host_total += call->reserved_host;
}

void Core::State::let_go_of_host(CallState* call) {
  for (auto page = call->host_pages.rbegin(); page != call->host_pages.rend(); ++page) {
    host->release(*page, index.tick());
  }
  call->host_pages.clear();
  call->in_arena = false;
  reserved_host_total -= call->reserved_host;
  call->reserved_host = 0;
}

// The page that step `offset` of the stretch begins: its home on the host, and its place on the GPU while the
// arena grows. False, with nothing taken, when there is no room.
bool Core::State::grant_arena_page(uint32_t entry, uint32_t offset, Launch* launch) {
  CallState& call = calls[launch->members[entry].slot];
  const uint32_t pages = table_pages(call) + 1;
  const uint32_t held = gpu_pages_held(config.policies.retrieval_spec, config.page_tokens, pages);
  const bool grows = held > call.pages.size();
  if ((grows && !free_page_is_next()) || host->pages_free() == 0) return false;
  if (grows) {
    call.pages.push_back(gpu.acquire());
    launch->grants.push_back({offset, entry, call.pages.back()});
    if (call.reserved > 0) {
      --call.reserved;
      --reserved_total;
    }
  }
  call.host_pages.push_back(host->acquire());
  launch->grants.push_back({offset, entry, call.host_pages.back()});
  ++pages_running;
  if (call.reserved_host > 0) {
    --call.reserved_host;
    --reserved_host_total;
  }
  return true;
}

// A granted page returns as if it had never left its pool.
void Core::State::give_back_arena_page(CallState* call, PageId page) {
  const bool reserves = config.admission == AdmissionKind::kFullReservation;
  if (on_host(page)) {
    KVT_CHECK(call->host_pages.back() == page);
    call->host_pages.pop_back();
    host->unacquire(page);
    --pages_running;
    call->reserved_host += reserves ? 1 : 0;
    reserved_host_total += reserves ? 1 : 0;
    return;
  }
  KVT_CHECK(call->pages.back() == page);
  call->pages.pop_back();
  gpu.unacquire(page);
  call->reserved += reserves ? 1 : 0;
  reserved_total += reserves ? 1 : 0;
}

}  // namespace kvtwin
