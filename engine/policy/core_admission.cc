// Waiting calls: how they get in, and the host tier that some of them wait for.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/planted.h"
#include "engine/policy/core_state.h"

namespace kvtwin {

// The first of the waiting runs now; `cached` tokens of it are there. What barred it is over.
void Core::State::let_in(Slot slot, uint32_t cached) {
  CallState& call = calls[slot];
  waiting.pop_front();
  running.push_back(slot);
  call.phase = CallState::Phase::kRunning;
  call.kv = cached;
  call.admitted_now = true;
  call.insert_barred = call.recall_barred = call.reuse_barred = false;
}

// Nothing of it has been dropped since it was admitted.
void Core::State::begin_retention(CallState* call) {
  call->due = true;
  call->fill = call->known();
  call->ranked = call->answers = 0;
  ++call->attempt;
}

Core::State::Admitted Core::State::admit(Slot slot) {
  CallState& call = calls[slot];
  if (call.arrives) return receive_first(slot);
  if (arena) return admit_to_arena(slot);
  if (!call.host_pages.empty()) return resume(slot);
  if (dual) return admit_to_pools(slot);
  if (snapshots) return admit_from_snapshot(slot);
  Match match;
  if (call.pages_known > 0) {
    // One token at least is computed: something must be sampled from.
    const uint32_t pages_max = std::min((call.known() - 1) / config.page_tokens, call.pages_known);
    match = call.recall_barred ? index.acquire_on_gpu(call.name_space, call.identity, pages_max)
                               : index.acquire(call.name_space, call.identity, pages_max);
    if (match.pages_gpu < match.lease.pages) return recall_first(slot, match);
  }
  const uint32_t cached = match.lease.pages * config.page_tokens;
  const uint32_t tokens = entry_tokens(call, cached, false);
  const uint64_t pages = pages_to_admit(call, cached, tokens);
  if (tokens == 0 || pages + config.watermark_pages > pages_available(call)) {
    index.release(match.lease, false);
    return Admitted::kBlocked;
  }
  let_in(slot, cached);
  call.lease = match.lease;
  begin_retention(&call);
  if (retention.by_group()) call.tables.open(&retention.shape());
  if (!retention.keeps_all()) adopt_holes(&call);
  start(slot, cached, tokens, pages);
  return Admitted::kYes;
}

// An admitted call, whose lease and tables are its own, gets what it reserves and its first tokens' pages.
void Core::State::start(Slot slot, uint32_t cached, uint32_t tokens, uint64_t pages) {
  CallState& call = calls[slot];
  cells_held += cells_of(call, cached);
  pages_running += call.pages_held();
  if (retention.reserves() || config.admission == AdmissionKind::kFullReservation) {
    call.reserved = static_cast<uint32_t>(pages);
    reserved_total += pages;
  }
  const size_t granted_before = granted.size();
  const bool grown = grow(&call, tokens);
  KVT_CHECK(grown);
  add_entry(slot, tokens, granted_before);
}

// Part of the prefix is below the gpu only: the call waits while it comes back, others may pass.
Core::State::Admitted Core::State::recall_first(Slot slot, const Match& match) {
  CallState& call = calls[slot];
  if (match.recall != Match::kNoRecall) {
    index.release(match.lease, false);
    TransferState& transfer = transfer_of(TransferId{match.recall});
    waiting.pop_front();
    call.phase = CallState::Phase::kRecalling;
    ++recalling;
    transfer.waiting.emplace_back(slot, call.id);
    return Admitted::kElsewhere;
  }
  const uint32_t pages = match.lease.pages - match.pages_gpu;
  // Steps in flight may still write pages that a preempted call gave back: no copy may touch them yet.
  const bool unsafe = preempted_until > done;
  if (unsafe || uint64_t{pages} + config.watermark_pages > pages_available(call)) {
    admission_open = admission_open || unsafe;
    index.release(match.lease, false);
    return Admitted::kBlocked;
  }
  TransferState& transfer = new_transfer(TransferKind::kRecall);
  transfer.lease = match.lease;
  transfer.first = match.pages_gpu;
  index.host_pages(match.lease, match.pages_gpu, &transfer.source);
  // One tier at a time: what is on the disk lies behind, and comes by a transfer of its own afterwards.
  const bool from_disk = index.on_disk(transfer.source.front());
  const auto other = std::find_if(transfer.source.begin(), transfer.source.end(),
                                  [&](PageId page) { return index.on_disk(page) != from_disk; });
  transfer.source.erase(other, transfer.source.end());
  for (size_t left = transfer.source.size(); left > 0; --left) {
    transfer.target.push_back(take_page(static_cast<uint32_t>(left)));
  }
  index.start_recall(match.lease, match.pages_gpu, raw(transfer.id));
  waiting.pop_front();
  call.phase = CallState::Phase::kRecalling;
  ++recalling;
  transfer.waiting.emplace_back(slot, call.id);
  submit_transfer(transfer, from_disk ? Tier::kDisk : Tier::kHost, Tier::kGpu);
  return Admitted::kElsewhere;
}

bool Core::State::below_clean_target(uint32_t pages_taken) const {
  return uint64_t{gpu.pages_free()} + index.pages_evictable_clean() + cleaning_pages <
         uint64_t{config.clean_pages_target} + pages_taken;
}

// Copies what is next to go to the host ahead of need, so that evicting it costs nothing.
void Core::State::start_cleaning() {
  constexpr uint32_t kCleaningsMax = 2;
  const bool unsafe = preempted_until > done && !KVT_PLANTED(unsafe_copy);  // see recall_first()
  if (!tiered() || cleaning_barred || unsafe) return;
  while (cleaning < kCleaningsMax && below_clean_target(0)) {
    // A spill under way makes room: nothing is dropped for want of a page that comes by itself.
    if (spilling > 0 && host->pages_free() == 0) return;
    TransferState& transfer = new_transfer(TransferKind::kDemote);
    using Cleaning = PrefixIndex::Cleaning;
    Cleaning answer = index.start_cleaning(config.clean_batch_pages, &transfer.lease, &transfer.first,
                                           &transfer.source, &transfer.target);
    if (answer == Cleaning::kStarted &&
        reserved_total > uint64_t{gpu.pages_free()} + index.pages_evictable()) {
      // While they are copied, pages cannot be evicted: what is set aside must stay within reach.
      // (Copies were dropped for it, so trying again at once could go on for ever.)
      index.clean_failed(transfer.lease, transfer.target);
      cleaning_barred = true;
      answer = Cleaning::kNothingToClean;
    }
    if (answer != Cleaning::kStarted) {
      undo_transfer(&transfer);
      if (answer == Cleaning::kNothingToClean) return;
      evicted_now = true;
      give_page(index.evict_uncleaned_page());  // the oldest there is, on either tier: not worth a copy
      continue;
    }
    evicted_now = true;  // what is being copied cannot be had meanwhile
    ++cleaning;
    cleaning_pages += static_cast<uint32_t>(transfer.source.size());
    submit_transfer(transfer, Tier::kGpu, Tier::kHost);
  }
}

void Core::State::on(const TransferDone& event) { finish_transfer(event.transfer, true); }
void Core::State::on(const TransferFailed& event) { finish_transfer(event.transfer, false); }

void Core::State::finish_transfer(TransferId id, bool arrived) {
  TransferState& transfer = transfer_of(id);
  if (transfer.kind == TransferKind::kPreempt) {
    finish_demotion(&transfer, arrived);
  } else if (transfer.kind == TransferKind::kResume) {
    finish_resume(&transfer, arrived);
  } else if (transfer.kind == TransferKind::kDemote) {
    --cleaning;
    cleaning_pages -= static_cast<uint32_t>(transfer.source.size());
    if (arrived) {
      index.cleaned(transfer.lease, transfer.first, transfer.target);
    } else {
      index.clean_failed(transfer.lease, transfer.target);
      cleaning_barred = true;
    }
  } else if (transfer.kind == TransferKind::kReceive) {
    finish_receive(transfer, arrived);
  } else if (arena) {
    finish_fetch(transfer, arrived);
  } else if (transfer.kind == TransferKind::kSpill) {
    finish_spill(transfer, arrived);
  } else {
    if (arrived) {
      index.recalled(transfer.lease, transfer.first, transfer.target);
    } else {
      index.recall_failed(transfer.lease, transfer.first);
      for (const PageId page : transfer.target) give_page(page);
    }
    index.release(transfer.lease, arrived);
    // They were at the head of the queue; in their old order they are again.
    for (auto call = transfer.waiting.rbegin(); call != transfer.waiting.rend(); ++call) {
      CallState& state = calls[call->first];
      if (state.id != call->second || state.phase != CallState::Phase::kRecalling) continue;
      state.phase = CallState::Phase::kWaiting;
      state.recall_barred = !arrived;
      --recalling;
      waiting.push_front(call->first);
    }
  }
  note({kTransferEnded, raw(id), arrived});
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
  place->lease = {};
  place->asked = true;
  place->live = true;
  ++transfers_live;
  return *place;
}

// As if it had never been. REQUIRES: it is the newest, and was not submitted.
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
  note({kTransfer, raw(transfer.id), digest_of(transfer.source), digest_of(transfer.target)});
  StartTransfer command{config.engine, transfer.id,     transfer.kind,  source,
                        target,        transfer.source, transfer.target};
  if (transfer.kind == TransferKind::kReceive) {
    command.from = transfer.from;
    command.call = transfer.waiting.front().second;
  }
  out->push_back(command);
}

}  // namespace kvtwin
