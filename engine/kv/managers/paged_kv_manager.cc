#include "engine/kv/managers/paged_kv_manager.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin {

using Starts = PagedRequest::Starts;

PagedKvManager::PagedKvManager(KvContext* context)
    : context_(*context),
      exact_tail_(exact_tokens_max(context->axes.precision, context->config.policies.precision_spec)),
      parts_(context, context->config.pages_gpu, KvParts::Shares::kGpu, nullptr),
      supply_(&parts_.gpu, &parts_.index, &parts_.index, context->config.page_order,
              context->config.evict_batch_pages, &context->draft.evicted),
      transfers_(context, &parts_, &supply_, &requests_),
      crossings_(context->config.page_tokens) {
  if (context->retention.keeps_all()) return;
  dropped_ = std::make_unique<DroppedSlots>(context, &parts_.index, &supply_, &held_, &requests_);
}

void PagedKvManager::open(RequestIndex request, const RequestReady& event) {
  if (request >= requests_.size()) requests_.resize(request + 1);
  PagedRequest& r = requests_[request];
  r.id = event.request;
  r.session = event.session;
  r.prefix.open(context_, event, context_.config.page_tokens);
  r.starts = Starts::kNowhere;
  r.unlaunched = r.load_barred = r.in_transfer = false;
  r.arrives = event.emitted > 0;
  r.from = event.from;
  r.source.assign(event.source.begin(), event.source.end());
  KVT_CHECK(!r.arrives || r.source.size() == div_ceil(event.prompt_tokens, context_.config.page_tokens));
  if (dropped_) dropped_->open(request, event);
}

// --- pages of running requests

// The request holds its prefix and pages, with the KV of `tokens` tokens.
void PagedKvManager::hold(RequestIndex request, uint32_t tokens) {
  held_.entries += entries(request, tokens);
  held_.pages += requests_[request].span() - dropped_slots(request);
}

void PagedKvManager::unhold(RequestIndex request, uint32_t tokens) {
  held_.entries -= entries(request, tokens);
  held_.pages -= requests_[request].span() - dropped_slots(request);
}

Admission PagedKvManager::admit(RequestIndex request, const AdmissionAsk& ask) {
  PagedRequest& r = requests_[request];
  if (r.arrives) return {transfers_.receive(request)};
  if (!r.host_pages.empty()) return swap_in(request, ask);
  const RequestProgress& progress = context_.progress[request];
  const uint32_t page = context_.config.page_tokens;
  Match match;
  if (const uint32_t most = r.prefix.reusable(progress, page); most > 0) {
    match = r.load_barred ? parts_.index.acquire_on_gpu(r.prefix.name_space, r.prefix.identity, most)
                          : parts_.index.acquire(r.prefix.name_space, r.prefix.identity, most);
    if (match.pages_gpu < match.pin.pages) return {transfers_.load(request, match)};
  }
  const uint32_t cached = match.pin.pages * page;
  const uint32_t tokens = ask.budget.entry_tokens(progress, cached, false);
  const uint32_t covered = context_.tokens_covered(progress, cached, tokens);
  const uint64_t pages = div_ceil(covered, page) - match.pin.pages;
  if (tokens == 0 || pages + context_.config.watermark_pages > supply_.available(r.reserved)) {
    parts_.index.release(match.pin, false);
    return {};
  }
  r.prefix.pin = match.pin;
  r.prefix.insert_barred = r.load_barred = false;
  r.unlaunched = true;
  if (dropped_) dropped_->begin(request);
  hold(request, cached);
  if (context_.reserves_all()) supply_.reservations().reserve(&r.reserved, pages);
  const size_t reused = context_.draft.reused.size();
  parts_.index.gpu_pages(r.prefix.pin, &context_.draft.reused);
  context_.draft.add_hit(reused);
  const bool grown = grow_from(request, cached, tokens);
  KVT_CHECK(grown);
  return {Admission::Kind::kNow, cached, tokens};
}

bool PagedKvManager::grow_from(RequestIndex request, uint32_t computed, uint32_t tokens) {
  PagedRequest& r = requests_[request];
  StepDraft& draft = context_.draft;
  const uint32_t page = context_.config.page_tokens, pages = div_ceil(computed + tokens, page);
  const uint32_t more = pages - std::min(pages, r.span());
  if (more > supply_.available(r.reserved)) return false;
  if (r.starts != Starts::kNowhere) {  // its entry lists the pages that are filled
    const size_t reused = draft.reused.size();
    parts_.index.gpu_pages(r.prefix.pin, &draft.reused);
    const auto filled = r.starts == Starts::kArrived
                            ? static_cast<ptrdiff_t>(r.pages.size())
                            : ptrdiff_t{div_ceil(computed, page)} - r.prefix.pin.pages;
    draft.reused.insert(draft.reused.end(), r.pages.begin(), r.pages.begin() + filled);
    draft.add_hit(reused);
    r.unlaunched = r.unlaunched || r.starts == Starts::kArrived;
  }
  for (uint32_t left = more; left > 0; --left) {
    r.pages.push_back(supply_.take(left));
    draft.allocated.push_back({r.pages.back(), 0});
  }
  supply_.reservations().spend(&r.reserved, more);
  held_.pages += more;
  return true;
}

Room PagedKvManager::grow(RequestIndex request, uint32_t tokens) {
  const uint32_t computed = context_.progress[request].computed;
  if (grow_from(request, computed, tokens)) return Room::kYes;
  const PagedRequest& r = requests_[request];
  const uint32_t coming = parts_.transfers.pages_coming();
  const uint32_t more = div_ceil(computed + tokens, context_.config.page_tokens) - r.span();
  return coming > 0 && more <= uint64_t{supply_.available(r.reserved)} + coming ? Room::kComing : Room::kNo;
}

void PagedKvManager::publish_until(RequestIndex request, uint32_t limit) {
  PagedRequest& r = requests_[request];
  r.prefix.publish(limit, dropped_ ? dropped_->by_page(request) : std::span<const uint16_t>{}, &parts_.index,
                   &r.pages);
}

// Pages that will drop entries are shared once the request has ended: the compression comes first.
void PagedKvManager::publish(RequestIndex request, uint32_t tokens) {
  if (dropped_) return;
  publish_until(request, std::min(settled(context_.progress[request].computed + tokens),
                                  requests_[request].prefix.places_public));
}

void PagedKvManager::write_entry(RequestIndex request, uint32_t entry, Launch* launch) {
  PlanEntry& e = launch->entries[entry];
  PagedRequest& r = requests_[request];
  held_.entries += e.stored();
  e.swapped_in = r.starts == Starts::kSwappedIn;
  r.starts = Starts::kNowhere;
  r.unlaunched = false;
  if (dropped_) return dropped_->write_entry(request, entry, launch);
  if (e.kind != EntryKind::kDecode) publish(request, 0);
}

// Releases a running request's pages: reusable ones to the index, the others to the pool, last page first.
void PagedKvManager::release(RequestIndex request, bool preempted) {
  PagedRequest& r = requests_[request];
  const uint32_t computed = context_.progress[request].computed;
  unhold(request, computed);
  publish_until(request,
                std::min(settled(computed), preempted ? r.prefix.places_known : r.prefix.places_public));
  for (auto page = r.pages.rbegin(); page != r.pages.rend(); ++page) {
    if (*page != kNoPage) supply_.free(*page);
  }
  r.pages.clear();
  if (dropped_) dropped_->end(request);
  parts_.index.mark(r.prefix.pin, r.session);
  parts_.index.release(r.prefix.pin, true);
  r.prefix.pin = {};
  supply_.reservations().drop(&r.reserved);
  r.starts = Starts::kNowhere;
}

void PagedKvManager::abandon(RequestIndex request) {
  transfers_.abandon(&requests_[request]);
  if (dropped_) dropped_->end(request);
}

void PagedKvManager::hand_over(RequestIndex request) {
  parts_.transfers.allow_offloads();
  const uint32_t computed = context_.progress[request].computed;
  unhold(request, computed);
  publish_until(request, std::min(settled(computed), requests_[request].prefix.places_public));
  transfers_.hand_over(request);
}

// --- swapping

bool PagedKvManager::preempt(RequestIndex request, const PreemptionAsk&) {
  if (context_.config.preemption == PreemptionKind::kSwap && swap_out(request)) return true;
  release(request, true);
  return false;
}

// Returns false, and changes nothing, if the request must be computed again (request_transfers.h).
bool PagedKvManager::swap_out(RequestIndex request) {
  PagedRequest& r = requests_[request];
  const uint32_t computed = context_.progress[request].computed;
  const uint32_t pages = div_ceil(computed, context_.config.page_tokens);
  if (dropped_ && dropped_->awaits(request)) return false;
  if (!transfers_.can_swap_out(request, pages - dropped_slots(request))) return false;
  unhold(request, computed);
  for (; r.span() > pages; r.pages.pop_back()) {
    supply_.free(r.pages.back());  // of an entry that was planned in this step and will not be computed
  }
  if (dropped_) dropped_->swap_out(request);
  transfers_.swap_out(request);
  return true;
}

Admission PagedKvManager::swap_in(RequestIndex request, const AdmissionAsk& ask) {
  PagedRequest& r = requests_[request];
  const RequestProgress& progress = context_.progress[request];
  const uint32_t tokens = ask.budget.entry_tokens(progress, progress.computed, progress.decodes_next());
  const Admission::Kind kind = transfers_.swap_in(request, tokens, dropped_slots(request), ask);
  if (kind != Admission::Kind::kNow) return {kind};
  r.starts = Starts::kSwappedIn;
  r.prefix.insert_barred = r.load_barred = false;
  hold(request, progress.computed);
  const bool grown = grow_from(request, progress.computed, tokens);
  KVT_CHECK(grown);
  r.unlaunched = true;
  return {kind, progress.computed, tokens};
}

Delivery PagedKvManager::deliver(RequestIndex request, const Transfer& transfer, bool arrived) {
  PagedRequest& r = requests_[request];
  const RequestProgress& progress = context_.progress[request];
  r.in_transfer = false;
  if (!arrived) supply_.reservations().drop(&r.reserved);
  if (!arrived && dropped_) dropped_->end(request);
  const auto attach = [&] {
    r.prefix.pin = transfer.pin;
    r.pages.assign(transfer.target.begin(), transfer.target.end());
  };
  switch (transfer.kind) {
    case TransferKind::kLoad:
      r.load_barred = !arrived;
      return {};
    case TransferKind::kReceive:
      r.arrives = false;
      if (!arrived) return {};
      attach();
      r.starts = Starts::kArrived;
      hold(request, progress.prompt);
      publish_until(request, std::min(settled(progress.prompt), r.prefix.places_public));
      return {true, progress.prompt};
    case TransferKind::kSwapIn:
      if (!arrived) return {};
      attach();
      if (dropped_) dropped_->swap_in(request);
      r.starts = Starts::kSwappedIn;
      r.prefix.insert_barred = r.load_barred = false;
      hold(request, progress.computed);
      return {true, progress.computed};
    case TransferKind::kSwapOut:
      if (!arrived) return {};
      r.host_pages = transfer.target;
      return {false, progress.computed};
    case TransferKind::kOffload:
    case TransferKind::kSpill:
      break;
  }
  KVT_CHECK(!"no request waits for a copy of cached prefixes to a lower tier");
  return {};
}

void PagedKvManager::start_copies_down() {
  if (parts_.host != nullptr) transfers_.start_copies_down();
}

// --- coalesced steps

uint32_t PagedKvManager::coalescible_steps(const Launch& launch) const {
  if (parts_.host && context_.steps.closed()) return 1;  // offloads resume when those steps have ended
  return dropped_ ? dropped_->coalescible_steps(launch) : UINT32_MAX;
}

uint32_t PagedKvManager::take_ahead(uint32_t steps, Launch* launch) {
  const uint32_t page = context_.config.page_tokens;
  const bool watch_offload = parts_.host && !parts_.transfers.below_offload_target(0);
  crossings_.clear();
  for (uint32_t entry = 0; entry < launch->members.size(); ++entry) {
    const RequestIndex request = launch->members[entry].request_index;
    crossings_.add(entry, requests_[request].span() * page - context_.progress[request].computed);
  }
  const uint32_t able = crossings_.visit(steps, [&](uint32_t entry, uint32_t offset) {
    if (!supply_.free_page_is_next() || (watch_offload && parts_.transfers.below_offload_target(1)))
      return false;
    PagedRequest& r = requests_[launch->members[entry].request_index];
    r.pages.push_back(supply_.take_free());
    supply_.reservations().spend(&r.reserved, 1);
    ++held_.pages;
    launch->allocations.push_back({offset, entry, r.pages.back()});
    return true;
  });
  roll_back(launch, able);
  held_.entries += launch->members.size() * uint64_t{able - 1};
  return able;
}

void PagedKvManager::undo_ahead(Launch* launch, uint32_t left) {
  roll_back(launch, left);
  held_.entries -= launch->members.size() * (launch->end - launch->first - left);
}

// Returns the pages for steps [offset, ...) of the launch to the pool, as an exact undo.
void PagedKvManager::roll_back(Launch* launch, uint32_t offset) {
  for (; !launch->allocations.empty() && launch->allocations.back().offset >= offset;
       launch->allocations.pop_back()) {
    const PageAllocation& allocation = launch->allocations.back();
    PagedRequest& r = requests_[launch->members[allocation.entry].request_index];
    KVT_CHECK(r.pages.back() == allocation.page);
    r.pages.pop_back();
    supply_.roll_back(allocation.page);
    supply_.reservations().unspend(&r.reserved);
    --held_.pages;
  }
}

HeldEntries PagedKvManager::held_by(const Launch& launch) const {
  return dropped_ ? dropped_->held_by(launch) : HeldEntries{};
}

void PagedKvManager::answered(const StepDone& event, const Launch& launch) {
  if (dropped_) dropped_->answered(event, launch);
}

// --- queries

KvUsage PagedKvManager::usage(std::span<const RequestIndex>, const Launch* newest, uint32_t started) const {
  KvUsage usage;
  parts_.count_pages(&usage);
  const uint64_t pages_ahead = newest == nullptr ? 0 : newest->pages_after(started);
  const uint64_t entries_ahead =
      newest == nullptr ? 0 : newest->steps_after(started) * newest->members.size();
  usage.pages_gpu_free += static_cast<uint32_t>(pages_ahead);
  usage.pages_gpu_cached = supply_.pages_evictable();
  usage.pages_gpu_held = usage.pages_gpu_total - usage.pages_gpu_free - usage.pages_gpu_cached;
  usage.entries_held = held_.entries - entries_ahead;
  usage.slots_held = (held_.pages - pages_ahead) * context_.config.page_tokens;
  return usage;
}

// free + owned by requests + owned by the index + in flight = capacity, in each tier.
void PagedKvManager::check_invariants(std::span<const RequestIndex> live,
                                      std::span<const RequestIndex> running) const {
  parts_.check_invariants();
  uint64_t own = 0, host_own = 0, promised = 0;
  HeldKv held;
  for (const RequestIndex request : running) {
    const PagedRequest& r = requests_[request];
    const uint32_t computed = context_.progress[request].computed;
    for (const PageId page : r.pages) KVT_CHECK(page == kNoPage || parts_.gpu.owned(page));
    if (dropped_) dropped_->check_invariants(request);
    KVT_CHECK(uint64_t{r.span()} * context_.config.page_tokens >= computed);
    const uint64_t pages = r.span() - dropped_slots(request);
    KVT_CHECK(entries(request, computed) <= pages * context_.config.page_tokens);
    KVT_CHECK(r.host_pages.empty() && !r.in_transfer);
    held.entries += entries(request, computed);
    held.pages += pages;
    own += r.pages.size() - static_cast<size_t>(std::count(r.pages.begin(), r.pages.end(), kNoPage));
  }
  uint64_t pinned = 0;
  for (const RequestIndex request : live) {
    promised += requests_[request].reserved.left;
    host_own += requests_[request].host_pages.size();
    pinned += requests_[request].span() > 0 ? 1 : 0;
  }
  KVT_CHECK(pinned <= running.size());  // a request that does not run has no pages
  KVT_CHECK(held.entries == held_.entries);
  KVT_CHECK(held.pages == held_.pages);
  supply_.check_invariants(promised);
  const TransferManager::PagesInFlight in_flight = parts_.transfers.pages_in_flight();
  own += transfers_.pages_handed_over();
  KVT_CHECK(parts_.gpu.pages_owned() == own + parts_.index.pages_gpu() + in_flight.gpu);
  KVT_CHECK(!parts_.host ||
            parts_.host->pages_owned() == host_own + parts_.index.pages_host() + in_flight.host);
  KVT_CHECK(!parts_.disk || parts_.disk->pages_owned() == parts_.index.pages_disk() + in_flight.disk);
}

}  // namespace kvtwin
