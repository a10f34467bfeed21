// MixedPrecisionKvManager: pages on the host, of requests that are swapped out and of cached prefixes.

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/kv/managers/mixed_precision_kv_manager.h"

namespace kvtwin {

// --- swapping

bool MixedPrecisionKvManager::preempt(RequestIndex request, const PreemptionAsk& ask) {
  if (context_.config.preemption == PreemptionKind::kSwap && !ask.alone && swap_out(request)) return true;
  if (ask.alone) requests_[request].reuse_barred = true;
  release(request, true);
  return false;
}

// Returns false, and changes nothing, if the request must be computed again.
bool MixedPrecisionKvManager::swap_out(RequestIndex request) {
  Request& r = requests_[request];
  const RequestProgress& progress = context_.progress[request];
  const uint32_t computed = progress.computed, page = context_.config.page_tokens;
  // Of an entry that was planned in this step, only a decoded KV entry can be removed.
  if (computed == 0 || progress.launched_out() || r.unlaunched || !r.entries.waiting.empty()) return false;
  if (r.entries.at > computed && computed < progress.prompt) return false;
  if (!parts_.tiers.free_host_pages(r.entries.pages())) return false;
  held_.entries -= computed;
  held_.pages -= r.entries.pages();
  if (r.entries.at > computed) {
    pool_.truncate(computed, r.logical_pages(), &r.entries);
    pool_.free_unused(&r.entries);
    for (; uint64_t{r.span() - 1} * page >= computed; r.pages.pop_back())
      parts_.tiers.free_gpu(r.pages.back());
  }
  SharedPages shared{r.prefix.pin, {}};
  logical_pages_.clear();
  parts_.index.gpu_pages(r.prefix.pin, &logical_pages_);
  logical_pages_.insert(logical_pages_.end(), r.pages.begin(), r.pages.end());
  pool_.swap_out(logical_pages_, &r.entries, &shared.copied, &r.away);
  r.coming_4 = static_cast<uint32_t>(r.entries.pages_4.size());
  coming_4_ += r.coming_4;
  reserved_2_.drop(&r.reserved_2);
  reserved_4_.drop(&r.reserved_4);
  r.prefix.pin = {};
  r.swapped_in = false;
  Transfer& transfer = parts_.transfers.swap_out(shared, &r.pages);
  context_.digest.add(DecisionDigest::kSwapOutStarted, computed, raw(r.id), transfer.source.size());
  parts_.transfers.wait(&transfer, request, r.id);
  r.in_transfer = true;
  return true;
}

// int4 pages that the running requests take for their next entries, beyond their reservations.
uint64_t MixedPrecisionKvManager::pages_4_for_next(const AdmissionAsk& ask) const {
  uint64_t pages = 0;
  for (const RequestIndex other : ask.running) {
    const RequestProgress& progress = context_.progress[other];
    if (progress.launched_out()) continue;
    const uint32_t tokens =
        std::max(1u, ask.budget.entry_tokens(progress, progress.computed, progress.decodes_next()));
    const uint32_t more = pool_.demand(requests_[other].entries, tokens, 0).pages_4;
    pages += more - std::min(more, requests_[other].reserved_4.left);
  }
  return pages;
}

// Its copies return to pages of their formats. Further 2-bit KV entries are counted as if they spilled.
Admission MixedPrecisionKvManager::swap_in(RequestIndex request, const AdmissionAsk& ask) {
  Request& r = requests_[request];
  const RequestProgress& progress = context_.progress[request];
  const uint32_t tokens = ask.budget.entry_tokens(progress, progress.computed, progress.decodes_next());
  const uint32_t ahead =
      context_.reserves_all() ? progress.prompt + progress.output - progress.computed : tokens;
  const uint32_t further = pool_.demand(r.entries, ahead, 0).pages_4;
  const MixedPrecisionDemand copies{r.away.copies(false), r.away.copies(true)};
  const uint64_t pages_4 = uint64_t{copies.pages_4} + further + pages_4_for_next(ask);
  if (tokens == 0 || context_.steps.closed() || copies.pages_2 > available(r, false) ||
      pages_4 + context_.config.watermark_pages > available(r, true)) {
    context_.draft.admission_open = context_.draft.admission_open || context_.steps.closed();
    return {Admission::Kind::kBlocked, 0, tokens};
  }
  make_room(copies);
  Transfer& transfer = parts_.transfers.swap_in({}, &r.host_pages);
  take_logical_pages(r.away.logical_pages.size(), &transfer.own);
  pool_.swap_in(r.away, transfer.own, &r.entries, &transfer.target);
  if (context_.reserves_all()) reserved_4_.reserve(&r.reserved_4, further);
  parts_.transfers.wait(&transfer, request, r.id);
  r.in_transfer = true;
  parts_.transfers.submit(&transfer, context_.out);
  return {Admission::Kind::kAfterTransfer};
}

Delivery MixedPrecisionKvManager::deliver(RequestIndex request, const Transfer& transfer, bool arrived) {
  Request& r = requests_[request];
  const uint32_t computed = context_.progress[request].computed;
  r.in_transfer = false;
  coming_4_ -= std::exchange(r.coming_4, 0);
  if (transfer.kind == TransferKind::kLoad) {
    r.load_barred = !arrived;
    return {};
  }
  if (!arrived) {
    forget(&r);
    return {};
  }
  if (transfer.kind == TransferKind::kSwapOut) {
    r.host_pages = transfer.target;
    return {false, computed};
  }
  KVT_CHECK(transfer.kind == TransferKind::kSwapIn);
  r.pages = transfer.own;
  r.swapped_in = true;
  r.prefix.insert_barred = r.reuse_barred = false;
  r.settled = UINT32_MAX;
  held_.entries += computed;
  held_.pages += r.entries.pages();
  return {true, computed};
}

// What the request had is lost: it is computed again.
void MixedPrecisionKvManager::forget(Request* r) {
  for (auto page = r->host_pages.rbegin(); page != r->host_pages.rend(); ++page)
    parts_.tiers.free_host(*page);
  r->host_pages.clear();
  r->away = {};
  reserved_4_.drop(&r->reserved_4);
  MixedPrecisionPool::reset(&r->entries);
}

void MixedPrecisionKvManager::abandon(RequestIndex request) {
  Request& r = requests_[request];
  if (r.in_transfer) parts_.transfers.leave(r.id);
  r.in_transfer = false;
  coming_4_ -= std::exchange(r.coming_4, 0);
  forget(&r);
}

// --- cached prefixes on the host

// The missing logical pages, with all pages that hold KV entries of them.
Admission MixedPrecisionKvManager::load(RequestIndex request, const Match& match, const AdmissionAsk& ask) {
  Request& r = requests_[request];
  const bool alone = ask.running.empty() && parts_.transfers.live() == 0 && !context_.steps.closed();
  logical_pages_.clear();
  parts_.index.host_pages(match.pin, match.pages_gpu, &logical_pages_);
  const MixedPrecisionDemand demand = pool_.demand_of_load(logical_pages_);
  const bool waits = match.load != Match::kNoLoad;
  const bool room = demand.pages_2 <= available(r, false) &&
                    uint64_t{demand.pages_4} + context_.config.watermark_pages <= available(r, true);
  if (!waits && (context_.steps.closed() || !room)) {
    parts_.index.release(match.pin, false);
    context_.draft.admission_open = context_.draft.admission_open || context_.steps.closed();
    if (!alone) return {};
    r.load_barred = true;  // all of its prefix never fits
    return try_admit(request, ask);
  }
  Transfer* transfer = nullptr;
  if (waits) {
    parts_.index.release(match.pin, false);
    transfer = &parts_.transfers.find(TransferId{match.load});
  } else {
    make_room(demand);
    transfer = &parts_.transfers.load(match);
    take_logical_pages(transfer->source.size(), &transfer->numbers);
    transfer->own = transfer->numbers;
    transfer->source.clear();
    pool_.load(logical_pages_, transfer->numbers, &transfer->source, &transfer->target);
  }
  parts_.transfers.wait(transfer, request, r.id);
  r.in_transfer = true;
  if (!waits) parts_.transfers.submit(transfer, context_.out);
  return {Admission::Kind::kAfterTransfer};
}

void MixedPrecisionKvManager::take_logical_pages(size_t count, std::vector<PageId>* pages) {
  for (size_t i = 0; i < count; ++i) {
    pages->push_back(parts_.gpu.acquire());
    pool_.hold({&pages->back(), 1}, true);
  }
}

void MixedPrecisionKvManager::start_copies_down() {
  if (!offloads()) return;
  const uint64_t reserved[] = {reserved_2_.total(), reserved_4_.total()};
  const bool lost = parts_.transfers.start_copies_down(reserved, !context_.steps.closed(), context_.out);
  context_.draft.evicted = context_.draft.evicted || lost;
}

}  // namespace kvtwin
