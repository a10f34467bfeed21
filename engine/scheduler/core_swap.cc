// Core: preemption by swapping. A preempted request keeps its KV, on the host
// (docs/design/methods/composition.md#axes placement).
//
//   running -> swapped out (its pages are being copied, or wait until no step writes them)
//   -> waiting, with host pages
//   -> loading (the pages it lacks are being copied back) -> running, at the same position
//
// Pages are freed only when the copy completes. Until then, requests short of pages are skipped if in-flight
// copies will cover them, and none is admitted. All pages are copied, shared ones too: by the time the
// request returns, the index may have evicted them; pages that it still has are not copied back. If the host
// has no room, or a copy fails, the request is computed again.
//
// Pages in flight belong to the transfer, which continues if the request ends meanwhile.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/planted.h"
#include "engine/scheduler/core_state.h"

namespace kvtwin {

// Swaps the request out. Returns false, and changes nothing, if it must be computed again.
bool Core::State::swap_out(RequestIndex request_index) {
  RequestState& request = requests[request_index];
  const uint32_t pages = div_ceil(request.kv, config.page_tokens);
  if (request.kv == 0 || request.admitted_now || request.launched_out() || !index.free_host_pages(pages))
    return false;
  digest.add(kSwapOutStarted, request.kv, raw(request.id), pages);
  entries_held -= kv_entries_of(request, request.kv);
  pages_running -= table_pages(request);
  // An entry planned for it in this step will not be computed.
  while (request.pages_span() > pages) {
    free_page(request.pages.back());
    request.pages.pop_back();
  }
  reserved_total -= request.reserved;
  request.reserved = request.beyond = 0;
  Transfer& transfer = transfers.swap_out(request.pin, &request.pages);
  transfers.wait(&transfer, request_index, request.id);
  request.pin = {};
  request.swapped_in = request.arrived_now = false;
  request.phase = RequestState::Phase::kSwappedOut;
  if (request.launches == 0 || KVT_PLANTED(early_swap_out)) transfers.submit(&transfer, out);
  return true;
}

// Pages that the request's next entry takes, unless it was planned already.
uint32_t Core::State::pages_for_next(const RequestState& request) const {
  if (request.launched_out()) return 0;
  const uint32_t tokens = std::max(1u, entry_tokens(request, request.kv, request.decodes_next()));
  const uint32_t pages = div_ceil(request.kv + tokens, config.page_tokens);
  return pages - std::min(pages, request.pages_span());
}

// admit() for a request whose pages are on the host.
Core::State::Admitted Core::State::swap_in(RequestIndex request_index) {
  RequestState& request = requests[request_index];
  const uint32_t whole = std::min(request.kv / config.page_tokens, request.pages_known);
  const Match match = index.acquire_on_gpu(request.name_space, request.identity, whole);
  const uint32_t tokens = entry_tokens(request, request.kv, request.decodes_next());
  // Include what running requests need for their next step; otherwise a swapped-in request is preempted again
  // at once.
  uint64_t behind = div_ceil(request.kv + tokens, config.page_tokens) - match.pin.pages;
  for (const RequestIndex other : running) behind += pages_for_next(requests[other]);
  // Steps in flight may still write pages that a preempted request released: no copy may use them yet.
  const bool unsafe = preempted_until > done;
  if (unsafe || tokens == 0 || behind + config.watermark_pages > pages_available(request)) {
    admission_open = admission_open || unsafe;
    index.release(match.pin, false);
    return Admitted::kBlocked;
  }
  Transfer& transfer = transfers.swap_in(match.pin, &request.host_pages);
  take_pages(static_cast<uint32_t>(transfer.source.size()), &transfer.target);
  begin_loading(request_index, &transfer);
  if (transfer.source.empty()) {  // the index still has all of them
    attach(request_index, transfer);
    transfers.undo(&transfer);
    const size_t allocated_before = allocated.size();
    const bool grown = grow(&request, tokens);
    KVT_CHECK(grown);
    add_entry(request_index, tokens, allocated_before);
    request.admitted_now = true;
    return Admitted::kYes;
  }
  transfers.submit(&transfer, out);
  return Admitted::kNotHere;
}

// The request has all its pages, and continues at the same position.
void Core::State::attach_swapped_in(RequestState* request) {
  request->swapped_in = true;
  request->insert_barred = request->load_barred = false;
  entries_held += kv_entries_of(*request, request->kv);
  pages_running += table_pages(*request);
}

// Whether pages that are being swapped out will cover the request's demand once they are freed.
bool Core::State::waits_for_pages(const RequestState& request, uint32_t tokens) const {
  const uint32_t pages = div_ceil(request.kv + tokens, config.page_tokens);
  const uint32_t coming = transfers.pages_coming();
  return coming > 0 && pages - request.pages_span() <= uint64_t{pages_available(request)} + coming;
}

// Pages that the next entry of a swapped-in request starts with: as many as its tokens fill.
void Core::State::reuse_swapped_in(const RequestState& request) {
  index.gpu_pages(request.pin, &reused);
  const uint32_t own = div_ceil(request.kv, config.page_tokens) - request.pin.pages;
  reused.insert(reused.end(), request.pages.begin(), request.pages.begin() + own);
}

}  // namespace kvtwin
