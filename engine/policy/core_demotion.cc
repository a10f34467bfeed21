// Preemption by demotion: who must give way keeps its KV, on the host (METHODS 7.1 placement, 7.10).
//
//   running -> away (its pages are being copied, or wait until no step writes them)
//   -> waiting, with host pages
//   -> recalling (those it lacks are being copied back) -> running, where it was
//
// Nothing becomes free before the copy has ended, so a call that lacks pages meanwhile sits out, and nobody
// is let in. All pages travel, shared ones too: by the time the call is back, the index may have lost them;
// what it has still is not copied back. Where there is no room on the host, or a copy fails, the call is
// computed again.
//
// Pages under way belong to the transfer: a call that ends meanwhile leaves it alone.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/planted.h"
#include "engine/policy/core_state.h"

namespace kvtwin {

// The call leaves with its pages. False, and nothing changed: it must be computed again.
bool Core::State::demote(Slot slot) {
  CallState& call = calls[slot];
  const uint32_t pages = div_ceil(call.kv, config.page_tokens);
  if (call.kv == 0 || call.admitted_now || call.launched_out() || !index.free_host_pages(pages)) return false;
  note({kDemoted, call.kv, raw(call.id), pages});
  cells_held -= cells_of(call, call.kv);
  pages_running -= table_pages(call);
  // What was planned for it in this very step will not be written.
  while (call.pages_span() > pages) {
    give_page(call.pages.back());
    call.pages.pop_back();
  }
  reserved_total -= call.reserved;
  call.reserved = call.beyond = 0;
  TransferState& transfer = new_transfer(TransferKind::kPreempt);
  transfer.lease = call.lease;
  transfer.first = call.lease.pages;
  index.gpu_pages(call.lease, &transfer.source);
  transfer.source.insert(transfer.source.end(), call.pages.begin(), call.pages.end());
  for (uint32_t i = 0; i < pages; ++i) transfer.target.push_back(host->acquire());
  transfer.waiting.emplace_back(slot, call.id);
  call.lease = {};
  call.pages.clear();
  call.resumed = call.arrived_now = false;
  call.phase = CallState::Phase::kAway;
  ++away;
  pages_coming += static_cast<uint32_t>(transfer.source.size()) - transfer.first;
  transfer.asked = false;
  if (call.launches == 0 || KVT_PLANTED(early_demotion)) ask_for(&transfer, Tier::kGpu, Tier::kHost);
  return true;
}

void Core::State::ask_for(TransferState* transfer, Tier source, Tier target) {
  transfer->asked = true;
  submit_transfer(*transfer, source, target);
}

// The copy that waits for steps in flight, null where it has been asked for.
TransferState* Core::State::unasked_demotion(Slot slot) {
  for (TransferState& transfer : transfers) {
    const bool waits = transfer.live && !transfer.asked;
    if (waits && transfer.waiting.front() == std::pair(slot, calls[slot].id)) return &transfer;
  }
  return nullptr;
}

// The last step that writes the call's pages has ended.
void Core::State::start_demotion(Slot slot) {
  TransferState* transfer = unasked_demotion(slot);
  KVT_CHECK(transfer != nullptr);
  ask_for(transfer, Tier::kGpu, Tier::kHost);
}

// The call has ended. What has been asked for goes on without it.
void Core::State::cancel_demotion(Slot slot) {
  TransferState* transfer = unasked_demotion(slot);
  if (transfer == nullptr) return;
  transfer->waiting.clear();
  finish_demotion(transfer, false);
  transfer->live = false;
  --transfers_live;
}

void Core::State::finish_demotion(TransferState* transfer, bool arrived) {
  for (size_t i = transfer->source.size(); i > transfer->first; --i) give_page(transfer->source[i - 1]);
  pages_coming -= static_cast<uint32_t>(transfer->source.size()) - transfer->first;
  index.release(transfer->lease, true);
  --away;
  const bool there = !transfer->waiting.empty() && waits_for(*transfer, CallState::Phase::kAway);
  if (!there || !arrived) {
    for (const PageId page : transfer->target) host->release(page, index.tick());
  }
  if (!there) return;
  const Slot slot = transfer->waiting.front().first;
  CallState& call = calls[slot];
  call.phase = CallState::Phase::kWaiting;
  waiting.push_front(slot);
  if (arrived) {
    call.host_pages = transfer->target;
  } else {
    call.kv = 0;
  }
}

bool Core::State::waits_for(const TransferState& transfer, CallState::Phase phase) const {
  const auto& [slot, id] = transfer.waiting.front();
  return calls[slot].id == id && calls[slot].phase == phase;
}

// Pages that the call's next entry takes, unless it has been planned.
uint32_t Core::State::pages_for_next(const CallState& call) const {
  if (call.launched_out()) return 0;
  const uint32_t tokens = std::max(1u, entry_tokens(call, call.kv, call.decodes_next()));
  const uint32_t pages = div_ceil(call.kv + tokens, config.page_tokens);
  return pages - std::min(pages, call.pages_span());
}

// As admit(), for a call whose pages are on the host.
Core::State::Admitted Core::State::resume(Slot slot) {
  CallState& call = calls[slot];
  const auto pages = static_cast<uint32_t>(call.host_pages.size());
  const uint32_t whole = std::min(call.kv / config.page_tokens, call.pages_known);
  const Match match = index.acquire_on_gpu(call.name_space, call.identity, whole);
  const uint32_t tokens = entry_tokens(call, call.kv, call.decodes_next());
  // With what those that run are going to need: whoever comes back only to give way again never gets on.
  uint64_t behind = div_ceil(call.kv + tokens, config.page_tokens) - match.lease.pages;
  for (const Slot other : running) behind += pages_for_next(calls[other]);
  // Steps in flight may still write pages that a preempted call gave back: no copy may touch them yet.
  const bool unsafe = preempted_until > done;
  if (unsafe || tokens == 0 || behind + config.watermark_pages > pages_available(call)) {
    admission_open = admission_open || unsafe;
    index.release(match.lease, false);
    return Admitted::kBlocked;
  }
  waiting.pop_front();
  TransferState& transfer = new_transfer(TransferKind::kResume);
  transfer.lease = match.lease;
  transfer.first = match.lease.pages;
  transfer.source.assign(call.host_pages.begin() + transfer.first, call.host_pages.end());
  for (uint32_t left = pages - transfer.first; left > 0; --left) transfer.target.push_back(take_page(left));
  for (uint32_t i = 0; i < transfer.first; ++i) host->release(call.host_pages[i], index.tick());
  call.host_pages.clear();
  call.phase = CallState::Phase::kRecalling;
  ++recalling;
  transfer.waiting.emplace_back(slot, call.id);
  if (transfer.source.empty()) {  // the index has kept all of it
    finish_resume(&transfer, true);
    undo_transfer(&transfer);
    const size_t granted_before = granted.size();
    const bool grown = grow(&call, tokens);
    KVT_CHECK(grown);
    add_entry(slot, tokens, granted_before);
    call.admitted_now = true;
    return Admitted::kYes;
  }
  ask_for(&transfer, Tier::kHost, Tier::kGpu);
  return Admitted::kElsewhere;
}

void Core::State::finish_resume(TransferState* transfer, bool arrived) {
  for (const PageId page : transfer->source) host->release(page, index.tick());
  const bool there = waits_for(*transfer, CallState::Phase::kRecalling);
  if (!there || !arrived) {
    for (const PageId page : transfer->target) give_page(page);
    index.release(transfer->lease, arrived);
  }
  if (!there) return;
  const Slot slot = transfer->waiting.front().first;
  CallState& call = calls[slot];
  --recalling;
  if (!arrived) {
    call.kv = 0;
    call.phase = CallState::Phase::kWaiting;
    waiting.push_front(slot);
    return;
  }
  call.phase = CallState::Phase::kRunning;
  running.push_back(slot);
  call.lease = transfer->lease;
  call.pages = transfer->target;
  call.resumed = true;
  call.insert_barred = call.recall_barred = false;
  cells_held += cells_of(call, call.kv);
  pages_running += table_pages(call);
}

// It lacks pages that are on their way to the host: they come by themselves.
bool Core::State::waits_for_pages(const CallState& call, uint32_t tokens) const {
  const uint32_t pages = div_ceil(call.kv + tokens, config.page_tokens);
  return pages_coming > 0 && pages - call.pages_span() <= uint64_t{pages_available(call)} + pages_coming;
}

// Pages that the next entry of a resumed call starts with: as many as its tokens fill.
void Core::State::adopt_resumed(const CallState& call) {
  index.gpu_pages(call.lease, &adopted);
  const uint32_t own = div_ceil(call.kv, config.page_tokens) - call.lease.pages;
  adopted.insert(adopted.end(), call.pages.begin(), call.pages.begin() + own);
}

// Adds the pages that transfers own: neither a call nor the index does.
void Core::State::check_transfers(uint64_t* pages_gpu, uint64_t* pages_host, uint64_t* pages_disk) const {
  uint64_t waits = 0, coming = 0;
  for (const TransferState& transfer : transfers) {
    if (!transfer.live) continue;
    const bool to_host = transfer.kind == TransferKind::kDemote || transfer.kind == TransferKind::kPreempt;
    const bool to_disk = transfer.kind == TransferKind::kSpill;
    *(to_disk ? pages_disk : to_host ? pages_host : pages_gpu) += transfer.target.size();
    if (transfer.kind == TransferKind::kPreempt) coming += transfer.source.size() - transfer.first;
    if (transfer.kind == TransferKind::kResume) *pages_host += transfer.source.size();
    waits += transfer.waiting.size();
  }
  KVT_CHECK(coming == pages_coming);
  KVT_CHECK(recalling <= waits);
  *pages_gpu += coming;
}

}  // namespace kvtwin
