// Prefill and decode on engines of their own: how a call leaves the one and arrives at the other.
//
// The prefilling engine computes the prompt and samples the first token, keeps the call's pages and says so
// (HandOver). The decoding engine takes pages of its own when it has room, copies what it does not have
// already (StartTransfer kReceive), and runs the call from then on like one that it prefilled itself. It
// pulls, rather than being pushed to, because only it knows when it has room and what its prefix index holds;
// so a page is adopted only after its transfer ended, and no page is promised twice.
//
// A decoding engine that preempts the call computes everything again itself: the source is gone by then.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/policy/core_state.h"

namespace kvtwin {

// --- the prefilling engine

void Core::State::hand_over(Slot slot) {
  CallState& call = calls[slot];
  KVT_CHECK(call.phase == CallState::Phase::kRunning);
  KVT_CHECK(call.kv >= call.prompt);
  cleaning_barred = false;
  running.erase(std::find(running.begin(), running.end(), slot));
  cells_held -= cells_of(call, call.kv);
  pages_running -= table_pages(call);
  publish_pages(&call, std::min(pages_settled(call, call.kv), call.pages_public));
  HeldPages& held = handed_over.emplace_back();
  held.call = call.id;
  held.lease = call.lease;
  held.own.swap(call.pages);
  index.gpu_pages(held.lease, &held.all);
  held.all.insert(held.all.end(), held.own.begin(), held.own.end());
  held.all.resize(div_ceil(call.prompt, config.page_tokens));
  index.mark(held.lease, call.key.session);
  call.lease = {};
  reserved_total -= call.reserved;
  note({kHandedOver, done, raw(call.id), digest_of(held.all)});
  out->push_back(HandOver{config.engine, call.id, held.all});
  out->push_back(DropCallState{config.engine, call.id, DropCallState::Reason::kFinished});
  forget(slot);
}

void Core::State::on(const PagesTaken& event) {
  const auto held = std::find_if(handed_over.begin(), handed_over.end(),
                                 [&](const HeldPages& one) { return one.call == event.call; });
  if (held == handed_over.end()) return;  // from a log that somebody changed
  for (auto page = held->own.rbegin(); page != held->own.rend(); ++page) give_page(*page);
  index.release(held->lease, true);
  handed_over.erase(held);
  cleaning_barred = false;
  note({kTaken, raw(event.call)});
}

uint64_t Core::State::pages_handed_over() const {
  uint64_t pages = 0;
  for (const HeldPages& held : handed_over) {
    for (const PageId page : held.all) KVT_CHECK(gpu.owned(page));
    pages += held.own.size();
  }
  return pages;
}

// --- the decoding engine

void Core::State::begin_arrival(const CallReady& event, CallState* call) {
  call->arrives = true;
  call->from = event.from;
  call->source.assign(event.source.begin(), event.source.end());
  call->sampled = call->emitted = std::min(event.emitted, event.output_tokens);
  while (call->next_trigger < call->triggers.size() && call->triggers[call->next_trigger] <= call->emitted)
    ++call->next_trigger;
  KVT_CHECK(call->source.size() == div_ceil(call->prompt, config.page_tokens));
}

// It is not waited for any more. Computing everything here is always possible.
void Core::State::drop_source(CallState* call) {
  call->arrives = false;
  out->push_back(SourceRead{config.engine, call->id, call->from});
}

Core::State::Admitted Core::State::receive_first(Slot slot) {
  CallState& call = calls[slot];
  Match match;
  if (call.pages_known > 0) {  // what is on the host only comes from the other engine as well
    const uint32_t pages_max = std::min(call.prompt / config.page_tokens, call.pages_known);
    match = index.acquire_on_gpu(call.name_space, call.identity, pages_max);
  }
  const uint32_t cached = match.lease.pages;
  const uint32_t missing = static_cast<uint32_t>(call.source.size()) - cached;
  const uint64_t pages = std::max<uint64_t>(missing, pages_to_admit(call, cached * config.page_tokens, 1));
  // Steps in flight may still write pages that a preempted call gave back: no copy may touch them yet.
  const bool unsafe = preempted_until > done;
  if (unsafe || pages + config.watermark_pages > pages_available(call)) {
    admission_open = admission_open || unsafe;
    index.release(match.lease, false);
    return Admitted::kBlocked;
  }
  TransferState& transfer = new_transfer(TransferKind::kReceive);
  transfer.lease = match.lease;
  transfer.first = cached;
  transfer.from = call.from;
  transfer.source.assign(call.source.begin() + cached, call.source.end());
  for (uint32_t left = missing; left > 0; --left) transfer.target.push_back(take_page(left));
  if (config.admission == AdmissionKind::kFullReservation) {
    call.reserved = static_cast<uint32_t>(pages - missing);
    reserved_total += call.reserved;
  }
  waiting.pop_front();
  call.phase = CallState::Phase::kRecalling;
  ++recalling;
  transfer.waiting.emplace_back(slot, call.id);
  submit_transfer(transfer, Tier::kGpu, Tier::kGpu);
  return Admitted::kElsewhere;
}

void Core::State::finish_receive(const TransferState& transfer, bool arrived) {
  const auto [slot, id] = transfer.waiting.front();
  CallState& call = calls[slot];
  out->push_back(SourceRead{config.engine, id, transfer.from});
  const bool expected = call.id == id && call.phase == CallState::Phase::kRecalling;
  if (expected) {
    --recalling;
    call.arrives = false;
  }
  if (!arrived || !expected) {
    for (auto page = transfer.target.rbegin(); page != transfer.target.rend(); ++page) give_page(*page);
    index.release(transfer.lease, false);
    if (!expected) return;  // cancelled meanwhile
    reserved_total -= call.reserved;
    call.reserved = 0;
    call.phase = CallState::Phase::kWaiting;
    waiting.push_front(slot);
    return;
  }
  running.push_back(slot);
  call.phase = CallState::Phase::kRunning;
  call.lease = transfer.lease;
  call.pages.assign(transfer.target.begin(), transfer.target.end());
  call.kv = call.prompt;
  call.fill = call.known();
  call.arrived_now = true;
  ++call.attempt;
  cells_held += cells_of(call, call.kv);
  pages_running += call.pages_held();
  publish_pages(&call, std::min(pages_settled(call, call.kv), call.pages_public));
}

// The first entry names all pages that are filled; those taken for the entry itself are grants.
void Core::State::adopt_arrived(CallState* call, size_t granted_before) {
  index.gpu_pages(call->lease, &adopted);
  const size_t filled = call->pages.size() - (granted.size() - granted_before);
  adopted.insert(adopted.end(), call->pages.begin(), call->pages.begin() + static_cast<ptrdiff_t>(filled));
  call->arrived_now = false;
  call->admitted_now = true;
}

}  // namespace kvtwin
