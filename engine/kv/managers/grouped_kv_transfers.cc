// GroupedKvManager: pages on the host, of requests that are swapped out and of prefix checkpoints.

#include "engine/base/check.h"
#include "engine/kv/managers/grouped_kv_manager.h"

namespace kvtwin {

// --- swapping

bool GroupedKvManager::preempt(RequestIndex request, const PreemptionAsk& ask) {
  if (swap_out(request)) return true;
  if (ask.alone) requests_[request].shared.reuse_barred = true;
  release(request);
  return false;
}

// Returns false, and changes nothing, if the request must be computed again (request_transfers.h).
bool GroupedKvManager::swap_out(RequestIndex request) {
  GroupedRequest& r = requests_[request];
  const RequestProgress& progress = context_.progress[request];
  if (r.compression.answers > 0 || r.unlaunched) return false;
  if (!transfers_.can_swap_out(progress, r.tables.pages_filled(progress.computed))) return false;
  unhold(request);
  spare_.clear();
  r.tables.trim(progress.computed, &spare_);  // of an entry that was planned and will not be computed
  for (const PageId page : spare_) supply_.free(page);
  spare_.clear();
  SharedPages shared{r.shared.chunks.pin, {}};
  r.tables.detach(&shared.pages, &spare_);
  r.shared.chunks.pin = {};
  transfers_.swap_out({request, r.shared.id}, shared, &spare_, &r);
  return true;
}

Admission GroupedKvManager::swap_in(RequestIndex request, const AdmissionAsk& ask) {
  GroupedRequest& r = requests_[request];
  const RequestProgress& progress = context_.progress[request];
  const uint32_t tokens = ask.budget.entry_tokens(progress, progress.computed, progress.decodes_next());
  if (tokens == 0) return {};
  const uint64_t own = demand_.to_return(request, tokens), copied = r.host_pages.size();
  if (transfers_.must_wait(own, r)) return {};
  // Include what running requests need for their next step; otherwise a swapped-in request is preempted again
  // at once.
  const uint64_t pages = own + demand_.for_next(ask);
  if (transfers_.must_wait(pages, r)) return {};
  if (const uint32_t free = supply_.pages_free(); free < copied)
    supply_.make_room(static_cast<uint32_t>(copied) - free);
  const Admission::Kind kind = transfers_.swap_in({request, r.shared.id}, {}, pages, &r);
  if (kind == Admission::Kind::kAfterTransfer && demand_.reserves())
    supply_.reservations().reserve(&r.reserved, own - copied);
  return {kind};
}

// --- prefix checkpoints on the host

Admission GroupedKvManager::load(RequestIndex request, const Match& match, const AdmissionAsk& ask) {
  GroupedRequest& r = requests_[request];
  const bool alone = ask.running.empty() && parts_.transfers.live() == 0 && !context_.steps.closed();
  const Admission::Kind kind = transfers_.load({request, r.shared.id}, match, &r);
  if (kind != Admission::Kind::kBlocked || !alone) return {kind};
  r.shared.load_barred = true;  // all of its prefix never fits
  return try_admit(request, ask);
}

void GroupedKvManager::start_copies_down() {
  if (checkpoints_.offloads()) transfers_.start_copies_down();
}

// --- both

Delivery GroupedKvManager::deliver(RequestIndex request, const Transfer& transfer, bool arrived) {
  GroupedRequest& r = requests_[request];
  const uint32_t computed = context_.progress[request].computed;
  r.in_transfer = false;
  if (transfer.kind == TransferKind::kLoad) r.shared.load_barred = !arrived;
  if (!arrived || transfer.kind == TransferKind::kLoad) {
    supply_.reservations().drop(&r.reserved);
    return {};
  }
  if (transfer.kind == TransferKind::kSwapOut) {
    r.host_pages = transfer.target;
    return {false, computed};
  }
  KVT_CHECK(transfer.kind == TransferKind::kSwapIn);
  r.tables.attach(computed, transfer.target);
  hold(request);
  r.swapped_in = r.shared.chunks.insert_barred = true;
  return {true, computed};
}

void GroupedKvManager::abandon(RequestIndex request) {
  transfers_.abandon(requests_[request].shared.id, &requests_[request]);
}

}  // namespace kvtwin
