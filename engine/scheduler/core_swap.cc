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
  TransferState& transfer = new_transfer(TransferKind::kSwapOut);
  transfer.pin = request.pin;
  transfer.first = request.pin.pages;
  index.gpu_pages(request.pin, &transfer.source);
  transfer.source.insert(transfer.source.end(), request.pages.begin(), request.pages.end());
  for (uint32_t i = 0; i < pages; ++i) transfer.target.push_back(host->acquire());
  transfer.waiting.emplace_back(request_index, request.id);
  request.pin = {};
  request.pages.clear();
  request.swapped_in = request.arrived_now = false;
  request.phase = RequestState::Phase::kSwappedOut;
  ++swapped_out;
  pages_coming += static_cast<uint32_t>(transfer.source.size()) - transfer.first;
  transfer.asked = false;
  if (request.launches == 0 || KVT_PLANTED(early_swap_out)) ask_for(&transfer, Tier::kGpu, Tier::kHost);
  return true;
}

void Core::State::ask_for(TransferState* transfer, Tier source, Tier target) {
  transfer->asked = true;
  submit_transfer(*transfer, source, target);
}

// The swap-out that waits for steps in flight; null if it was submitted.
TransferState* Core::State::planned_swap_out(RequestIndex request_index) {
  for (TransferState& transfer : transfers) {
    const bool waits = transfer.live && !transfer.asked;
    if (waits && transfer.waiting.front() == std::pair(request_index, requests[request_index].id))
      return &transfer;
  }
  return nullptr;
}

// The last step that writes the request's pages has ended.
void Core::State::start_swap_out(RequestIndex request_index) {
  TransferState* transfer = planned_swap_out(request_index);
  KVT_CHECK(transfer != nullptr);
  ask_for(transfer, Tier::kGpu, Tier::kHost);
}

// The request has ended. A submitted copy continues without it.
void Core::State::cancel_swap_out(RequestIndex request_index) {
  TransferState* transfer = planned_swap_out(request_index);
  if (transfer == nullptr) return;
  transfer->waiting.clear();
  finish_swap_out(transfer, false);
  transfer->live = false;
  --transfers_live;
}

void Core::State::finish_swap_out(TransferState* transfer, bool arrived) {
  for (size_t i = transfer->source.size(); i > transfer->first; --i) free_page(transfer->source[i - 1]);
  pages_coming -= static_cast<uint32_t>(transfer->source.size()) - transfer->first;
  index.release(transfer->pin, true);
  --swapped_out;
  const bool there = !transfer->waiting.empty() && waits_for(*transfer, RequestState::Phase::kSwappedOut);
  if (!there || !arrived) {
    for (const PageId page : transfer->target) host->release(page, index.tick());
  }
  if (!there) return;
  const RequestIndex request_index = transfer->waiting.front().first;
  RequestState& request = requests[request_index];
  request.phase = RequestState::Phase::kWaiting;
  waiting.push_front(request_index);
  if (arrived) {
    request.host_pages = transfer->target;
  } else {
    request.kv = 0;
  }
}

bool Core::State::waits_for(const TransferState& transfer, RequestState::Phase phase) const {
  const auto& [request_index, id] = transfer.waiting.front();
  return requests[request_index].id == id && requests[request_index].phase == phase;
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
  const auto pages = static_cast<uint32_t>(request.host_pages.size());
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
  waiting.pop_front();
  TransferState& transfer = new_transfer(TransferKind::kSwapIn);
  transfer.pin = match.pin;
  transfer.first = match.pin.pages;
  transfer.source.assign(request.host_pages.begin() + transfer.first, request.host_pages.end());
  for (uint32_t left = pages - transfer.first; left > 0; --left) transfer.target.push_back(take_page(left));
  for (uint32_t i = 0; i < transfer.first; ++i) host->release(request.host_pages[i], index.tick());
  request.host_pages.clear();
  request.phase = RequestState::Phase::kLoading;
  ++recalling;
  transfer.waiting.emplace_back(request_index, request.id);
  if (transfer.source.empty()) {  // the index still has all of them
    finish_swap_in(&transfer, true);
    undo_transfer(&transfer);
    const size_t allocated_before = allocated.size();
    const bool grown = grow(&request, tokens);
    KVT_CHECK(grown);
    add_entry(request_index, tokens, allocated_before);
    request.admitted_now = true;
    return Admitted::kYes;
  }
  ask_for(&transfer, Tier::kHost, Tier::kGpu);
  return Admitted::kNotHere;
}

void Core::State::finish_swap_in(TransferState* transfer, bool arrived) {
  for (const PageId page : transfer->source) host->release(page, index.tick());
  const bool there = waits_for(*transfer, RequestState::Phase::kLoading);
  if (!there || !arrived) {
    for (const PageId page : transfer->target) free_page(page);
    index.release(transfer->pin, arrived);
  }
  if (!there) return;
  const RequestIndex request_index = transfer->waiting.front().first;
  RequestState& request = requests[request_index];
  --recalling;
  if (!arrived) {
    request.kv = 0;
    request.phase = RequestState::Phase::kWaiting;
    waiting.push_front(request_index);
    return;
  }
  request.phase = RequestState::Phase::kRunning;
  running.push_back(request_index);
  request.pin = transfer->pin;
  request.pages = transfer->target;
  request.swapped_in = true;
  request.insert_barred = request.load_barred = false;
  entries_held += kv_entries_of(request, request.kv);
  pages_running += table_pages(request);
}

// Whether pages that are being swapped out will cover the request's demand once they are freed.
bool Core::State::waits_for_pages(const RequestState& request, uint32_t tokens) const {
  const uint32_t pages = div_ceil(request.kv + tokens, config.page_tokens);
  return pages_coming > 0 &&
         pages - request.pages_span() <= uint64_t{pages_available(request)} + pages_coming;
}

// Pages that the next entry of a swapped-in request starts with: as many as its tokens fill.
void Core::State::reuse_swapped_in(const RequestState& request) {
  index.gpu_pages(request.pin, &reused);
  const uint32_t own = div_ceil(request.kv, config.page_tokens) - request.pin.pages;
  reused.insert(reused.end(), request.pages.begin(), request.pages.begin() + own);
}

// Adds the pages that transfers own, which belong to neither a request nor the index.
void Core::State::check_transfers(uint64_t* pages_gpu, uint64_t* pages_host, uint64_t* pages_disk) const {
  uint64_t waits = 0, coming = 0;
  for (const TransferState& transfer : transfers) {
    if (!transfer.live) continue;
    const bool to_host = transfer.kind == TransferKind::kOffload || transfer.kind == TransferKind::kSwapOut;
    const bool to_disk = transfer.kind == TransferKind::kSpill;
    *(to_disk ? pages_disk : to_host ? pages_host : pages_gpu) += transfer.target.size();
    if (transfer.kind == TransferKind::kSwapOut) coming += transfer.source.size() - transfer.first;
    if (transfer.kind == TransferKind::kSwapIn) *pages_host += transfer.source.size();
    waits += transfer.waiting.size();
  }
  KVT_CHECK(coming == pages_coming);
  KVT_CHECK(recalling <= waits);
  *pages_gpu += coming;
}

}  // namespace kvtwin
