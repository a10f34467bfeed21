#include "engine/kv/managers/request_transfers.h"

namespace kvtwin {

bool RequestTransfers::must_wait(uint64_t pages, const TransferState& state) {
  const bool unsafe = context_.steps.closed();
  const uint64_t available = supply_.available(state.reserved);
  if (!unsafe && pages + context_.config.watermark_pages <= available) return false;
  context_.draft.admission_open = context_.draft.admission_open || unsafe;
  return true;
}

void RequestTransfers::wait(const Transfer::Waiter& who, TransferState* state, Transfer* transfer) {
  state->in_transfer = true;
  parts_.transfers.wait(transfer, who.index, who.request);
}

Admission::Kind RequestTransfers::load(const Transfer::Waiter& who, const Match& match,
                                       TransferState* state) {
  if (match.load != Match::kNoLoad) {
    parts_.index.release(match.pin, false);
    wait(who, state, &parts_.transfers.find(TransferId{match.load}));
    return Admission::Kind::kAfterTransfer;
  }
  std::vector<PageId> lacking, numbers;
  parts_.index.host_pages(match.pin, match.pages_gpu, &lacking);
  if (parts_.tiers.watch != nullptr) parts_.tiers.watch->resolve_load(&lacking, &numbers);
  if (must_wait(lacking.size(), *state)) {
    parts_.index.release(match.pin, false);
    return Admission::Kind::kBlocked;
  }
  Transfer& transfer = parts_.transfers.load(match);
  if (parts_.tiers.watch != nullptr) parts_.tiers.watch->resolve_load(&transfer.source, &transfer.numbers);
  supply_.take(static_cast<uint32_t>(transfer.source.size()), &transfer.target);
  wait(who, state, &transfer);
  parts_.transfers.submit(&transfer, context_.out);
  return Admission::Kind::kAfterTransfer;
}

void RequestTransfers::start_copies_down() {
  const uint64_t reserved[] = {supply_.reservations().total()};
  const bool lost = parts_.transfers.start_copies_down(reserved, !context_.steps.closed(), context_.out);
  context_.draft.evicted = context_.draft.evicted || lost;
}

bool RequestTransfers::can_swap_out(const RequestProgress& progress, uint64_t pages) {
  return context_.config.preemption == PreemptionKind::kSwap && progress.computed > 0 &&
         !progress.launched_out() && progress.passes_left == 0 && pages > 0 &&
         parts_.tiers.free_host_pages(static_cast<uint32_t>(pages));
}

void RequestTransfers::swap_out(const Transfer::Waiter& who, const SharedPages& shared,
                                std::vector<PageId>* own, TransferState* state) {
  supply_.reservations().drop(&state->reserved);
  Transfer& transfer = parts_.transfers.swap_out(shared, own);
  context_.digest.add(DecisionDigest::kSwapOutStarted, context_.progress[who.index].computed,
                      raw(who.request), transfer.source.size());
  wait(who, state, &transfer);
}

Admission::Kind RequestTransfers::swap_in(const Transfer::Waiter& who, const Pin& cached, uint64_t pages,
                                          TransferState* state) {
  if (must_wait(pages, *state)) {
    parts_.index.release(cached, false);
    return Admission::Kind::kBlocked;
  }
  Transfer& transfer = parts_.transfers.swap_in(cached, &state->host_pages);
  supply_.take(static_cast<uint32_t>(transfer.source.size()), &transfer.target);
  if (transfer.source.empty()) {
    parts_.transfers.undo(&transfer);
    return Admission::Kind::kNow;
  }
  wait(who, state, &transfer);
  parts_.transfers.submit(&transfer, context_.out);
  return Admission::Kind::kAfterTransfer;
}

void RequestTransfers::abandon(RequestId request, TransferState* state) {
  if (state->in_transfer) {
    parts_.transfers.leave(request);
    supply_.reservations().drop(&state->reserved);
    return;
  }
  for (auto page = state->host_pages.rbegin(); page != state->host_pages.rend(); ++page)
    parts_.tiers.free_host(*page);
  state->host_pages.clear();
}

}  // namespace kvtwin
