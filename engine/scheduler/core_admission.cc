// Core: admission of waiting requests.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/scheduler/core_state.h"

namespace kvtwin {

// Moves the first waiting request to running; `cached` of its tokens are present. Clears its bars.
void Core::State::let_in(RequestIndex request_index, uint32_t cached) {
  RequestState& request = requests[request_index];
  waiting.pop_front();
  running.push_back(request_index);
  request.phase = RequestState::Phase::kRunning;
  request.kv = cached;
  request.admitted_now = true;
  request.insert_barred = request.load_barred = request.reuse_barred = false;
}

// No KV entry has been dropped since admission.
void Core::State::begin_retention(RequestState* request) {
  request->due = true;
  request->fill = request->known();
  request->ranked = request->answers = 0;
  ++request->attempt;
}

Core::State::Admitted Core::State::admit(RequestIndex request_index) {
  RequestState& request = requests[request_index];
  if (request.arrives) return receive_first(request_index);
  if (resident) return admit_to_resident(request_index);
  if (!request.host_pages.empty()) return swap_in(request_index);
  if (mixed) return admit_to_pools(request_index);
  if (prefix_checkpoints) return admit_from_prefix_checkpoint(request_index);
  Match match;
  if (request.pages_known > 0) {
    // At least one token is computed, because the next one must be sampled.
    const uint32_t pages_max = std::min((request.known() - 1) / config.page_tokens, request.pages_known);
    match = request.load_barred ? index.acquire_on_gpu(request.name_space, request.identity, pages_max)
                                : index.acquire(request.name_space, request.identity, pages_max);
    if (match.pages_gpu < match.pin.pages) return recall_first(request_index, match);
  }
  const uint32_t cached = match.pin.pages * config.page_tokens;
  const uint32_t tokens = entry_tokens(request, cached, false);
  const uint64_t pages = pages_to_admit(request, cached, tokens);
  if (tokens == 0 || pages + config.watermark_pages > pages_available(request)) {
    index.release(match.pin, false);
    return Admitted::kBlocked;
  }
  let_in(request_index, cached);
  request.pin = match.pin;
  begin_retention(&request);
  if (retention.by_group()) request.tables.open(&retention.shape());
  if (!retention.keeps_all()) reuse_dropped_slots(&request);
  start(request_index, cached, tokens, pages);
  return Admitted::kYes;
}

// Reserves for an admitted request, whose pin and tables are set, and allocates pages for its first tokens.
void Core::State::start(RequestIndex request_index, uint32_t cached, uint32_t tokens, uint64_t pages) {
  RequestState& request = requests[request_index];
  entries_held += kv_entries_of(request, cached);
  pages_running += request.pages_held();
  if (retention.reserves() || config.admission == AdmissionKind::kFullReservation) {
    request.reserved = static_cast<uint32_t>(pages);
    reserved_total += pages;
  }
  const size_t allocated_before = allocated.size();
  const bool grown = grow(&request, tokens);
  KVT_CHECK(grown);
  add_entry(request_index, tokens, allocated_before);
}

// Part of the prefix is only on a lower tier: the request waits for the load, and others may pass it.
Core::State::Admitted Core::State::recall_first(RequestIndex request_index, const Match& match) {
  RequestState& request = requests[request_index];
  if (match.load != Match::kNoLoad) {
    index.release(match.pin, false);
    begin_loading(request_index, &transfers.find(TransferId{match.load}));
    return Admitted::kNotHere;
  }
  const uint32_t pages = match.pin.pages - match.pages_gpu;
  // Steps in flight may still write pages that a preempted request released: no copy may use them yet.
  const bool unsafe = preempted_until > done;
  if (unsafe || uint64_t{pages} + config.watermark_pages > pages_available(request)) {
    admission_open = admission_open || unsafe;
    index.release(match.pin, false);
    return Admitted::kBlocked;
  }
  Transfer& transfer = transfers.load(match);
  take_pages(static_cast<uint32_t>(transfer.source.size()), &transfer.target);
  begin_loading(request_index, &transfer);
  transfers.submit(&transfer, out);
  return Admitted::kNotHere;
}

}  // namespace kvtwin
