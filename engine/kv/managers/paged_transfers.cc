#include "engine/kv/managers/paged_transfers.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin {

// --- admission

Admission::Kind PagedTransfers::load(RequestIndex request, const Match& match) {
  return common_.load(waiter(request), match, &requests_[request]);
}

Admission::Kind PagedTransfers::receive(RequestIndex request) {
  PagedRequest& r = requests_[request];
  const RequestProgress& progress = context_.progress[request];
  const uint32_t page = context_.config.page_tokens;
  Match match;
  if (r.prefix.places_known > 0) {  // pages that are only on the host come from the other engine as well
    const uint32_t pages_max = std::min(progress.prompt / page, r.prefix.places_known);
    match = parts_.index.acquire_on_gpu(r.prefix.name_space, r.prefix.identity, pages_max);
  }
  const uint32_t cached = match.pin.pages;
  const uint32_t missing = static_cast<uint32_t>(r.source.size()) - cached;
  const uint32_t covered = context_.tokens_covered(progress, cached * page, 1);
  const uint64_t pages = std::max<uint64_t>(missing, div_ceil(covered, page) - cached);
  if (common_.must_wait(pages, r)) {
    parts_.index.release(match.pin, false);
    return Admission::Kind::kBlocked;
  }
  const auto lacking = std::span<const PageId>(r.source).subspan(cached);
  Transfer& transfer = parts_.transfers.receive(match.pin, r.from, lacking, r.id);
  supply_.take(missing, &transfer.target);
  if (context_.reserves_all()) supply_.reservations().reserve(&r.reserved, pages - missing);
  common_.wait(waiter(request), &r, &transfer);
  parts_.transfers.submit(&transfer, context_.out);
  return Admission::Kind::kAfterTransfer;
}

// --- swapping

bool PagedTransfers::can_swap_out(RequestIndex request, uint32_t pages) {
  return !requests_[request].unlaunched && common_.can_swap_out(context_.progress[request], pages);
}

void PagedTransfers::swap_out(RequestIndex request) {
  PagedRequest& r = requests_[request];
  SharedPages shared{r.prefix.pin, {}};
  parts_.index.gpu_pages(shared.pin, &shared.pages);
  common_.swap_out(waiter(request), shared, &r.pages, &r);
  r.prefix.pin = {};
  r.starts = PagedRequest::Starts::kNowhere;
}

// Pages that the request's next entry takes, unless it was planned already.
uint64_t PagedTransfers::pages_for_next(RequestIndex request, const TokenBudget& budget) const {
  const RequestProgress& progress = context_.progress[request];
  if (progress.launched_out()) return 0;
  const uint32_t tokens =
      std::max(1u, budget.entry_tokens(progress, progress.computed, progress.decodes_next()));
  const uint32_t pages = div_ceil(progress.computed + tokens, context_.config.page_tokens);
  return pages - std::min(pages, requests_[request].span());
}

Admission::Kind PagedTransfers::swap_in(RequestIndex request, uint32_t tokens, uint32_t gaps,
                                        const AdmissionAsk& ask) {
  PagedRequest& r = requests_[request];
  if (tokens == 0) return Admission::Kind::kBlocked;
  const uint32_t computed = context_.progress[request].computed, page = context_.config.page_tokens;
  const uint32_t whole = std::min(computed / page, r.prefix.places_known);
  const Match match = parts_.index.acquire_on_gpu(r.prefix.name_space, r.prefix.identity, whole);
  // Include what running requests need for their next step; otherwise a swapped-in request is preempted again
  // at once.
  uint64_t pages = div_ceil(computed + tokens, page) - match.pin.pages - gaps;
  for (const RequestIndex other : ask.running) pages += pages_for_next(other, ask.budget);
  const Admission::Kind kind = common_.swap_in(waiter(request), match.pin, pages, &r);
  if (kind == Admission::Kind::kNow) r.prefix.pin = match.pin;  // the index still has all of them
  return kind;
}

void PagedTransfers::abandon(PagedRequest* request) {
  const bool in_transfer = request->in_transfer;
  common_.abandon(request->id, request);
  if (in_transfer || !request->arrives) return;
  request->arrives = false;
  context_.out->push_back(SourceRead{context_.config.engine, request->id, request->from});
}

// --- hand-over

void PagedTransfers::hand_over(RequestIndex request) {
  PagedRequest& r = requests_[request];
  HeldPages& held = handed_over_.emplace_back();
  held.request = r.id;
  held.pin = r.prefix.pin;
  held.own.swap(r.pages);
  parts_.index.gpu_pages(held.pin, &held.all);
  held.all.insert(held.all.end(), held.own.begin(), held.own.end());
  held.all.resize(div_ceil(context_.progress[request].prompt, context_.config.page_tokens));
  parts_.index.mark(held.pin, r.session);
  r.prefix.pin = {};
  supply_.reservations().drop(&r.reserved);
  context_.digest.add(DecisionDigest::kHandedOver, context_.steps.done, raw(r.id), chained_all(held.all));
  context_.out->push_back(HandOver{context_.config.engine, r.id, held.all});
}

void PagedTransfers::taken(const PagesTaken& event) {
  const auto held = std::find_if(handed_over_.begin(), handed_over_.end(),
                                 [&](const HeldPages& one) { return one.request == event.request; });
  if (held == handed_over_.end()) return;  // from a modified log
  for (auto page = held->own.rbegin(); page != held->own.rend(); ++page) supply_.free(*page);
  parts_.index.release(held->pin, true);
  handed_over_.erase(held);
  parts_.transfers.allow_offloads();
  context_.digest.add(DecisionDigest::kTaken, raw(event.request));
}

uint64_t PagedTransfers::pages_handed_over() const {
  uint64_t pages = 0;
  for (const HeldPages& held : handed_over_) {
    for (const PageId page : held.all) KVT_CHECK(parts_.gpu.owned(page));
    pages += held.own.size();
  }
  return pages;
}

}  // namespace kvtwin
