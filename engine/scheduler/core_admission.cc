// Core: admission of waiting requests, and the host tier that some of them wait for.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/planted.h"
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
    TransferState& transfer = transfer_of(TransferId{match.load});
    waiting.pop_front();
    request.phase = RequestState::Phase::kLoading;
    ++recalling;
    transfer.waiting.emplace_back(request_index, request.id);
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
  TransferState& transfer = new_transfer(TransferKind::kLoad);
  transfer.pin = match.pin;
  transfer.first = match.pages_gpu;
  index.host_pages(match.pin, match.pages_gpu, &transfer.source);
  // One tier at a time: pages on the disk come last on the path, and are loaded by a later transfer.
  const bool from_disk = index.on_disk(transfer.source.front());
  const auto other = std::find_if(transfer.source.begin(), transfer.source.end(),
                                  [&](PageId page) { return index.on_disk(page) != from_disk; });
  transfer.source.erase(other, transfer.source.end());
  for (size_t left = transfer.source.size(); left > 0; --left) {
    transfer.target.push_back(take_page(static_cast<uint32_t>(left)));
  }
  index.start_load(match.pin, match.pages_gpu, raw(transfer.id));
  waiting.pop_front();
  request.phase = RequestState::Phase::kLoading;
  ++recalling;
  transfer.waiting.emplace_back(request_index, request.id);
  submit_transfer(transfer, from_disk ? Tier::kDisk : Tier::kHost, Tier::kGpu);
  return Admitted::kNotHere;
}

bool Core::State::below_offload_target(uint32_t pages_taken) const {
  return uint64_t{gpu.pages_free()} + index.pages_evictable_copied() + offload_pages <
         uint64_t{config.offload_pages_target} + pages_taken;
}

// Offloads the next victims before they are needed, so that evicting them later costs nothing.
void Core::State::start_offload() {
  constexpr uint32_t kCleaningsMax = 2;
  const bool unsafe = preempted_until > done && !KVT_PLANTED(unsafe_copy);  // see recall_first()
  if (!tiered() || offload_barred || unsafe) return;
  while (offload < kCleaningsMax && below_offload_target(0)) {
    // A spill in progress makes room: no copy is dropped for a page that is about to become free.
    if (spilling > 0 && host->pages_free() == 0) return;
    TransferState& transfer = new_transfer(TransferKind::kOffload);
    using Offload = PrefixIndex::Offload;
    Offload answer = index.start_offload(config.offload_batch_pages, &transfer.pin, &transfer.first,
                                         &transfer.source, &transfer.target);
    if (answer == Offload::kStarted &&
        reserved_total > uint64_t{gpu.pages_free()} + index.pages_evictable()) {
      // Pages cannot be evicted while they are copied: reserved pages must remain available.
      // (Copies were dropped for it, so retrying at once might never end.)
      index.offload_failed(transfer.pin, transfer.target);
      offload_barred = true;
      answer = Offload::kNothingToOffload;
    }
    if (answer != Offload::kStarted) {
      undo_transfer(&transfer);
      if (answer == Offload::kNothingToOffload) return;
      evicted_now = true;
      free_page(index.evict_uncopied_page());  // the oldest on either tier: not worth a copy
      continue;
    }
    evicted_now = true;  // pages being copied are unavailable meanwhile
    ++offload;
    offload_pages += static_cast<uint32_t>(transfer.source.size());
    submit_transfer(transfer, Tier::kGpu, Tier::kHost);
  }
}

void Core::State::on(const TransferDone& event) { finish_transfer(event.transfer, true); }
void Core::State::on(const TransferFailed& event) { finish_transfer(event.transfer, false); }

void Core::State::finish_transfer(TransferId id, bool arrived) {
  TransferState& transfer = transfer_of(id);
  if (transfer.kind == TransferKind::kSwapOut) {
    finish_swap_out(&transfer, arrived);
  } else if (transfer.kind == TransferKind::kSwapIn) {
    finish_swap_in(&transfer, arrived);
  } else if (transfer.kind == TransferKind::kOffload) {
    --offload;
    offload_pages -= static_cast<uint32_t>(transfer.source.size());
    if (arrived) {
      index.offloaded(transfer.pin, transfer.first, transfer.target);
    } else {
      index.offload_failed(transfer.pin, transfer.target);
      offload_barred = true;
    }
  } else if (transfer.kind == TransferKind::kReceive) {
    finish_receive(transfer, arrived);
  } else if (resident) {
    finish_fetch(transfer, arrived);
  } else if (transfer.kind == TransferKind::kSpill) {
    finish_spill(transfer, arrived);
  } else {
    if (arrived) {
      index.loaded(transfer.pin, transfer.first, transfer.target);
    } else {
      index.load_failed(transfer.pin, transfer.first);
      for (const PageId page : transfer.target) free_page(page);
    }
    index.release(transfer.pin, arrived);
    // They were at the head of the queue, and return there in the same order.
    for (auto request = transfer.waiting.rbegin(); request != transfer.waiting.rend(); ++request) {
      RequestState& state = requests[request->first];
      if (state.id != request->second || state.phase != RequestState::Phase::kLoading) continue;
      state.phase = RequestState::Phase::kWaiting;
      state.load_barred = !arrived;
      --recalling;
      waiting.push_front(request->first);
    }
  }
  digest.add(kTransferEnded, raw(id), arrived);
  transfer.live = false;
  --transfers_live;
}

TransferState& Core::State::new_transfer(TransferKind kind) {
  auto place =
      std::find_if(transfers.begin(), transfers.end(), [](const TransferState& t) { return !t.live; });
  if (place == transfers.end()) place = transfers.emplace(transfers.end());
  place->id = TransferId{transfer_next++};
  place->kind = kind;
  place->source.clear();
  place->target.clear();
  place->waiting.clear();
  place->first = 0;
  place->pin = {};
  place->asked = true;
  place->live = true;
  ++transfers_live;
  return *place;
}

// Undoes a transfer exactly. REQUIRES: it is the newest, and was not submitted.
void Core::State::undo_transfer(TransferState* transfer) {
  transfer->live = false;
  --transfers_live;
  --transfer_next;
}

TransferState& Core::State::transfer_of(TransferId id) {
  const auto found = std::find_if(transfers.begin(), transfers.end(),
                                  [id](const TransferState& t) { return t.live && t.id == id; });
  KVT_CHECK(found != transfers.end());
  return *found;
}

void Core::State::submit_transfer(const TransferState& transfer, Tier source, Tier target) {
  digest.add(kTransfer, raw(transfer.id), transfer.kind, source, target, chained_all(transfer.source),
             chained_all(transfer.target));
  StartTransfer command{config.engine, transfer.id,     transfer.kind,  source,
                        target,        transfer.source, transfer.target};
  if (transfer.kind == TransferKind::kReceive) {
    command.from = transfer.from;
    command.request = transfer.waiting.front().second;
  }
  out->push_back(command);
}

}  // namespace kvtwin
