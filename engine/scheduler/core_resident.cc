// Core: placement resident (docs/design/methods/freekv.md, docs/design/methods/composition.md#walk-throughs
// FreeKV). Every page of a request has a host page from the moment it is begun, so that it can be offloaded
// as soon as it is full. The GPU holds the whole prompt until the step that completes it; from then on only
// resident pages, whose content the backend chooses step by step.
//
// Page allocations name both: a GPU page becomes one of the request's resident pages, a host page (recognised
// by its number) is for the next page of its context. Pages that are freed at the end of the prompt may be
// allocated to the next step: that step begins when they have been offloaded (the step graph's port
// offload_done). With a prefix cache, host pages may be another request's: core_resident_prefix.cc.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/planted.h"
#include "engine/methods/registry.h"
#include "engine/scheduler/core_state.h"

namespace kvtwin {

// Pages that the request holds with `tokens` tokens of KV.
Core::State::PageDemand Core::State::resident_demand(const RequestState& request, uint32_t tokens) const {
  const uint32_t pages = div_ceil(tokens - request.dropped_tokens, config.page_tokens);
  const RetrievalSpec& spec = config.policies.retrieval_spec;
  return {request.in_resident ? gpu_pages_held(spec, config.page_tokens, pages) : pages, pages};
}

// The largest number that it ever holds at once.
Core::State::PageDemand Core::State::resident_reservation(const RequestState& request) const {
  const PagesNeeded needed = fit.needed_in_resident(request.prompt, request.output);
  return {static_cast<uint32_t>(needed.gpu), static_cast<uint32_t>(needed.host)};
}

bool Core::State::resident_has_room(const RequestState& request, const PageDemand& more) const {
  const uint64_t others = reserved_host_total - request.reserved_host;
  const uint64_t host_copies = uint64_t{host->pages_free()} + index.pages_evictable();
  return more.gpu <= pages_available(request) && more.host + others <= host_copies;
}

bool Core::State::grow_resident(RequestState* request, uint32_t tokens) {
  const PageDemand demand = resident_demand(*request, request->kv + tokens);
  const auto had_gpu = static_cast<uint32_t>(request->pages.size());
  const uint32_t had_host = table_pages(*request);
  const PageDemand more{demand.gpu - std::min(demand.gpu, had_gpu),
                        demand.host - std::min(demand.host, had_host)};
  if (!resident_has_room(*request, more)) return false;
  for (uint32_t left = more.gpu; left > 0; --left) {
    request->pages.push_back(take_page(left));
    allocated.push_back({request->pages.back(), 0});
  }
  for (uint32_t left = more.host; left > 0; --left) {
    request->host_pages.push_back(take_host_copy(left));
    allocated.push_back({request->host_pages.back(), 0});
  }
  const uint32_t from_reserve = std::min(request->reserved, more.gpu);
  request->reserved -= from_reserve;
  reserved_total -= from_reserve;
  const uint32_t from_host_reserve = std::min(request->reserved_host, more.host);
  request->reserved_host -= from_host_reserve;
  reserved_host_total -= from_host_reserve;
  pages_running += more.host;
  return true;
}

// admit() for placement resident.
Core::State::Admitted Core::State::admit_to_resident(RequestIndex request_index) {
  RequestState& request = requests[request_index];
  Pin prefix;
  if (request.pages_known > 0 && !request.load_barred) {
    const uint32_t pages_max = std::min((request.known() - 1) / config.page_tokens, request.pages_known);
    prefix = index.acquire(request.name_space, request.identity, pages_max).pin;
  }
  const uint32_t cached = prefix.pages * config.page_tokens;
  const uint32_t tokens = std::min(request.known() - cached, prefill_budget());
  const bool reserves = config.admission == AdmissionKind::kFullReservation;
  const uint32_t covered = config.admission == AdmissionKind::kFullPrompt ? request.known() : cached + tokens;
  PageDemand demand = reserves ? resident_reservation(request) : resident_demand(request, covered);
  demand.host -= prefix.pages;  // they already have host pages
  const bool unsafe =
      prefix.pages > 0 && preempted_until > done && !KVT_PLANTED(early_fetch);  // see recall_first()
  if (unsafe || !resident_has_room(request, {demand.gpu + config.watermark_pages, demand.host})) {
    admission_open = admission_open || unsafe;
    index.release(prefix, false);
    return Admitted::kBlocked;
  }
  if (reserves) {
    request.reserved = demand.gpu;
    request.reserved_host = demand.host;
    reserved_total += demand.gpu;
    reserved_host_total += demand.host;
  }
  if (prefix.pages > 0) {
    fetch_prefix(request_index, prefix);
    return Admitted::kNotHere;
  }
  let_in(request_index, 0);
  begin_retention(&request);
  const size_t allocated_before = allocated.size();
  const bool grown = grow_resident(&request, tokens);
  KVT_CHECK(grown);
  add_entry(request_index, tokens, allocated_before);
  return Admitted::kYes;
}

// The step being launched drops KV entries of the prompt that it completes. The retained ones are compacted
// (layout compact) and offloaded to the first of the request's host pages; from now on its pages are those of
// the retained KV entries.
void Core::State::drop_before_resident(RequestState* request) {
  const uint32_t left = retention.entries_after(0, request->kv);
  KVT_CHECK(request->dropped_tokens == 0 && left <= request->kv);
  request->dropped_tokens = request->kv - left;
  entries_held -= request->dropped_tokens;
}

// The step being launched completes the prompt: frees the GPU pages beyond the resident pages, and the host
// pages beyond the retained KV entries.
void Core::State::shrink_to_resident(RequestState* request) {
  request->in_resident = true;
  const PageDemand keeps = resident_demand(*request, request->kv);
  uint64_t surplus = 0;
  for (; table_pages(*request) > keeps.host; ++surplus, --pages_running) {
    host->release(request->host_pages.back(), index.tick());
    request->host_pages.pop_back();
  }
  for (; request->pages.size() > keeps.gpu; ++surplus) {
    free_page(request->pages.back());
    request->pages.pop_back();
  }
  if (surplus > 0) digest.add(kShrunk, launched, raw(request->id), surplus);
  if (surplus > 0) preempted_until = launched + 1;  // no prefix may be copied to them before that step's end
  if (config.admission != AdmissionKind::kFullReservation) return;
  const PageDemand final = resident_demand(*request, request->prompt + request->output);
  reserved_total -= request->reserved;
  request->reserved = final.gpu - keeps.gpu;
  reserved_total += request->reserved;
  reserved_host_total -= request->reserved_host;
  request->reserved_host = final.host - keeps.host;
  reserved_host_total += request->reserved_host;
}

void Core::State::detach_from_host(RequestState* request) {
  for (auto page = request->host_pages.rbegin(); page != request->host_pages.rend(); ++page) {
    host->release(*page, index.tick());
  }
  request->host_pages.clear();
  request->in_resident = false;
  reserved_host_total -= request->reserved_host;
  request->reserved_host = 0;
}

// Allocates the page that step `offset` of the coalesced run begins: its host page, and a GPU page while the
// resident pages grow. Returns false, and takes nothing, if there is no room.
bool Core::State::allocate_resident_page(uint32_t entry, uint32_t offset, Launch* launch) {
  RequestState& request = requests[launch->members[entry].request_index];
  const uint32_t pages = table_pages(request) + 1;
  const uint32_t held = gpu_pages_held(config.policies.retrieval_spec, config.page_tokens, pages);
  const bool grows = held > request.pages.size();
  if ((grows && !free_page_is_next()) || host->pages_free() == 0) return false;
  if (grows) {
    request.pages.push_back(gpu.acquire());
    launch->allocations.push_back({offset, entry, request.pages.back()});
    if (request.reserved > 0) {
      --request.reserved;
      --reserved_total;
    }
  }
  request.host_pages.push_back(host->acquire());
  launch->allocations.push_back({offset, entry, request.host_pages.back()});
  ++pages_running;
  if (request.reserved_host > 0) {
    --request.reserved_host;
    --reserved_host_total;
  }
  return true;
}

// Returns an allocated page to its pool, as an exact undo.
void Core::State::roll_back_resident_page(RequestState* request, PageId page) {
  const bool reserves = config.admission == AdmissionKind::kFullReservation;
  if (on_host(page)) {
    KVT_CHECK(request->host_pages.back() == page);
    request->host_pages.pop_back();
    host->roll_back(page);
    --pages_running;
    request->reserved_host += reserves ? 1 : 0;
    reserved_host_total += reserves ? 1 : 0;
    return;
  }
  KVT_CHECK(request->pages.back() == page);
  request->pages.pop_back();
  gpu.roll_back(page);
  request->reserved += reserves ? 1 : 0;
  reserved_total += reserves ? 1 : 0;
}

}  // namespace kvtwin
