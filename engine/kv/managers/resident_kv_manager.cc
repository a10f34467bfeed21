#include "engine/kv/managers/resident_kv_manager.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/kv/managers/request_fit.h"
#include "engine/methods/retrieval_spec.h"

namespace kvtwin {

ResidentKvManager::ResidentKvManager(KvContext* context)
    : context_(*context),
      spec_(context->config.policies.retrieval_spec),
      compressions_(&context->retention),
      parts_(context, context->config.pages_gpu, KvParts::Shares::kHost, nullptr),
      gpu_(&parts_.gpu, nullptr, &parts_.index, context->config.page_order, context->config.evict_batch_pages,
           &context->draft.evicted),
      host_(parts_.host.get(), &parts_.index, &parts_.index, PageOrder::kLowestFirst,
            context->config.evict_batch_pages, &context->draft.evicted),
      crossings_(context->config.page_tokens) {}

void ResidentKvManager::open(RequestIndex request, const RequestReady& event) {
  KVT_CHECK(event.emitted == 0);
  if (request >= requests_.size()) requests_.resize(request + 1);
  Request& r = requests_[request];
  r.id = event.request;
  r.session = event.session;
  r.prefix.open(context_, event, context_.config.page_tokens);
  r.compression = {.spans = context_.retention.spans_of(event)};
  r.dropped = 0;
  r.shrunk = r.fetched = r.fetch_barred = r.in_transfer = r.holds = false;
}

// --- demand

// Pages that the request holds with `tokens` tokens of KV.
ResidentKvManager::Demand ResidentKvManager::demand(const Request& r, uint32_t tokens) const {
  const uint32_t pages = div_ceil(tokens - r.dropped, context_.config.page_tokens);
  return {r.shrunk ? gpu_pages_held(spec_, context_.config.page_tokens, pages) : pages, pages};
}

bool ResidentKvManager::has_room(const Request& r, const Demand& more) const {
  return more.gpu <= gpu_.available(r.reserved) && more.host <= host_.available(r.reserved_host);
}

void ResidentKvManager::reserve(Request* r, const Demand& pages) {
  gpu_.reservations().reserve(&r->reserved, pages.gpu);
  host_.reservations().reserve(&r->reserved_host, pages.host);
}

// --- admission

Admission ResidentKvManager::admit(RequestIndex request, const AdmissionAsk& ask) {
  Request& r = requests_[request];
  const RequestProgress& progress = context_.progress[request];
  const uint32_t page = context_.config.page_tokens;
  Pin prefix;
  if (const uint32_t most = r.prefix.reusable(progress, page); most > 0 && !r.fetch_barred)
    prefix = parts_.index.acquire(r.prefix.name_space, r.prefix.identity, most).pin;
  const uint32_t cached = prefix.pages * page;
  const uint32_t tokens = ask.budget.entry_tokens(progress, cached, false);
  Demand pages = demand(r, context_.tokens_covered(progress, cached, tokens));
  if (context_.reserves_all()) {  // the largest number that it ever holds at once
    const PagesNeeded needed = pages_needed_resident(context_.config, progress.prompt, progress.output);
    pages = {static_cast<uint32_t>(needed.gpu), static_cast<uint32_t>(needed.host)};
  }
  pages.host -= prefix.pages;  // they already have host pages
  // Steps in flight may still write pages that a preempted request released: no copy may use them yet.
  const bool unsafe = prefix.pages > 0 && context_.steps.closed();
  if (unsafe || !has_room(r, {pages.gpu + context_.config.watermark_pages, pages.host})) {
    context_.draft.admission_open = context_.draft.admission_open || unsafe;
    parts_.index.release(prefix, false);
    return {};
  }
  if (context_.reserves_all()) reserve(&r, pages);
  if (prefix.pages > 0) {
    fetch(request, prefix);
    return {Admission::Kind::kAfterTransfer};
  }
  r.prefix.insert_barred = r.fetch_barred = false;
  hold(request, 0);
  const bool grown = grow_from(request, 0, tokens);
  KVT_CHECK(grown);
  return {Admission::Kind::kNow, 0, tokens};
}

// The request has room for its prefix and its next entry: copies the prefix to the GPU.
void ResidentKvManager::fetch(RequestIndex request, const Pin& prefix) {
  Request& r = requests_[request];
  Transfer& transfer = parts_.transfers.fetch(prefix);
  gpu_.take(prefix.pages, &transfer.target);
  gpu_.reservations().spend(&r.reserved, prefix.pages);
  r.in_transfer = true;
  parts_.transfers.wait(&transfer, request, r.id);
  parts_.transfers.submit(&transfer, context_.out);
}

Delivery ResidentKvManager::deliver(RequestIndex request, const Transfer& transfer, bool arrived) {
  KVT_CHECK(transfer.kind == TransferKind::kLoad && transfer.to_request);
  Request& r = requests_[request];
  r.in_transfer = false;
  r.fetch_barred = !arrived;
  if (!arrived) {
    reserve(&r, {});
    return {};
  }
  r.prefix.pin = transfer.pin;
  r.pages.assign(transfer.target.begin(), transfer.target.end());
  r.prefix.insert_barred = false;
  r.fetched = true;
  const uint32_t tokens = r.prefix.pin.pages * context_.config.page_tokens;
  hold(request, tokens);
  return {true, tokens};
}

void ResidentKvManager::abandon(RequestIndex request) {
  Request& r = requests_[request];
  if (!r.in_transfer) return;
  parts_.transfers.leave(r.id);
  reserve(&r, {});
}

// --- pages of running requests

// The request runs with its prefix of `tokens` tokens.
void ResidentKvManager::hold(RequestIndex request, uint32_t tokens) {
  Request& r = requests_[request];
  r.holds = true;
  r.compression.begin(context_.progress[request].known(), 0);
  held_.entries += tokens;
  held_.pages += r.context_pages();
}

bool ResidentKvManager::grow_from(RequestIndex request, uint32_t computed, uint32_t tokens) {
  Request& r = requests_[request];
  StepDraft& draft = context_.draft;
  const Demand wants = demand(r, computed + tokens);
  const auto had_gpu = static_cast<uint32_t>(r.pages.size());
  const Demand more{wants.gpu - std::min(wants.gpu, had_gpu),
                    wants.host - std::min(wants.host, r.context_pages())};
  if (!has_room(r, more)) return false;
  if (r.fetched) {  // its entry lists the host pages of its prefix, then the GPU pages with their content
    const size_t reused = draft.reused.size();
    parts_.index.gpu_pages(r.prefix.pin, &draft.reused);
    draft.reused.insert(draft.reused.end(), r.pages.begin(), r.pages.begin() + r.prefix.pin.pages);
    draft.add_hit(reused);
    r.fetched = false;
  }
  for (uint32_t left = more.gpu; left > 0; --left) {
    r.pages.push_back(gpu_.take(left));
    draft.allocated.push_back({r.pages.back(), 0});
  }
  for (uint32_t left = more.host; left > 0; --left) {
    r.host_pages.push_back(host_.take(left));
    draft.allocated.push_back({r.host_pages.back(), 0});
  }
  gpu_.reservations().spend(&r.reserved, more.gpu);
  host_.reservations().spend(&r.reserved_host, more.host);
  held_.pages += more.host;
  return true;
}

Room ResidentKvManager::grow(RequestIndex request, uint32_t tokens) {
  return grow_from(request, context_.progress[request].computed, tokens) ? Room::kYes : Room::kNo;
}

void ResidentKvManager::write_entry(RequestIndex request, uint32_t entry, Launch* launch) {
  Request& r = requests_[request];
  PlanEntry& e = launch->entries[entry];
  RequestProgress& progress = context_.progress[request];
  const uint32_t tokens = progress.computed;
  e.dropped = r.dropped;
  if (e.kind == EntryKind::kChunk) e.query = compressions_.query(r.compression);
  held_.entries += e.stored();
  const LiveEntries live{e.context - r.dropped, tokens - r.dropped, tokens - r.dropped};
  if (!context_.retention.keeps_all() && compressions_.is_due(e, live, &r.compression, &progress)) {
    compressions_.plan(entry, tokens, &r.compression, launch);
    // The retained KV entries are compacted and offloaded to the first of the request's host pages; from now
    // on its pages are those of the retained KV entries.
    const uint32_t left = context_.retention.entries_after(0, tokens, r.compression.spans);
    KVT_CHECK(r.dropped == 0 && left <= tokens);
    r.dropped = tokens - left;
    held_.entries -= r.dropped;
  }
  // Passes of probe tokens read the whole prompt.
  const bool ends_prompt = (e.samples || e.kind == EntryKind::kProbe) && progress.passes_left == 0;
  if (ends_prompt && !r.shrunk) shrink(request);
  if (e.kind == EntryKind::kDecode) return;
  launch->decisive = launch->decisive || context_.config.prefix_cache;  // its end publishes pages
}

// The step being launched completes the prompt: frees the GPU pages beyond the resident pages, and the host
// pages beyond the retained KV entries.
void ResidentKvManager::shrink(RequestIndex request) {
  Request& r = requests_[request];
  const RequestProgress& progress = context_.progress[request];
  r.shrunk = true;
  const Demand keeps = demand(r, progress.computed);
  uint64_t surplus = 0;
  for (; r.context_pages() > keeps.host; ++surplus, --held_.pages, r.host_pages.pop_back())
    host_.free(r.host_pages.back());
  for (; r.pages.size() > keeps.gpu; ++surplus, r.pages.pop_back()) gpu_.free(r.pages.back());
  if (surplus > 0) {
    context_.digest.add(DecisionDigest::kShrunk, context_.steps.launched, raw(r.id), surplus);
    context_.steps.touched_until = context_.steps.launched + 1;  // no prefix may be copied to them before
  }
  if (!context_.reserves_all()) return;
  const Demand final = demand(r, progress.prompt + progress.output);
  reserve(&r, {final.gpu - keeps.gpu, final.host - keeps.host});
}

// Leading pages that hold KV that a prompt computed are shared.
void ResidentKvManager::publish_until(Request* r, uint32_t tokens, uint32_t limit) {
  const uint32_t settled = std::min(tokens, r->compression.fill) / context_.config.page_tokens;
  r->prefix.publish(std::min(settled, limit), {}, &parts_.index, &r->host_pages);
}

// The pages that the launch computed for prompts are on the host.
void ResidentKvManager::launch_ended(const Launch& launch) {
  if (!context_.config.prefix_cache) return;
  for (size_t i = 0; i < launch.entries.size(); ++i) {
    const PlanEntry& entry = launch.entries[i];
    Request& r = requests_[launch.members[i].request_index];
    // A request that was preempted meanwhile has already published its pages.
    if (entry.kind == EntryKind::kDecode || !r.holds) continue;
    publish_until(&r, entry.context + entry.stored(), r.prefix.places_public);
  }
}

void ResidentKvManager::release(RequestIndex request, bool preempted) {
  Request& r = requests_[request];
  const uint32_t computed = context_.progress[request].computed;
  held_.entries -= computed - r.dropped;
  held_.pages -= r.context_pages();
  publish_until(&r, computed, preempted ? r.prefix.places_known : r.prefix.places_public);
  for (auto page = r.pages.rbegin(); page != r.pages.rend(); ++page) gpu_.free(*page);
  r.pages.clear();
  r.dropped = 0;
  parts_.index.mark(r.prefix.pin, r.session);
  parts_.index.release(r.prefix.pin, true);
  r.prefix.pin = {};
  for (auto page = r.host_pages.rbegin(); page != r.host_pages.rend(); ++page) host_.free(*page);
  r.host_pages.clear();
  reserve(&r, {});
  r.holds = r.shrunk = r.fetched = false;
}

bool ResidentKvManager::preempt(RequestIndex request, const PreemptionAsk&) {
  release(request, true);
  return false;
}

// --- coalesced steps

uint32_t ResidentKvManager::take_ahead(uint32_t steps, Launch* launch) {
  const uint32_t page = context_.config.page_tokens;
  crossings_.clear();
  for (uint32_t entry = 0; entry < launch->members.size(); ++entry) {
    const RequestIndex request = launch->members[entry].request_index;
    const Request& r = requests_[request];
    crossings_.add(entry, r.context_pages() * page - (context_.progress[request].computed - r.dropped));
  }
  const uint32_t able = crossings_.visit(steps, [&](uint32_t entry, uint32_t offset) {
    return take_page_ahead(launch->members[entry].request_index, entry, offset, launch);
  });
  roll_back(launch, able);
  held_.entries += launch->members.size() * uint64_t{able - 1};
  return able;
}

// Takes the page that step `offset` of the coalesced run begins: its host page, and a GPU page while the
// resident pages grow. Returns false, and takes nothing, if there is no room.
bool ResidentKvManager::take_page_ahead(RequestIndex request, uint32_t entry, uint32_t offset,
                                        Launch* launch) {
  Request& r = requests_[request];
  const uint32_t held = gpu_pages_held(spec_, context_.config.page_tokens, r.context_pages() + 1);
  const bool grows = held > r.pages.size();
  if ((grows && !gpu_.free_page_is_next()) || host_.pages_free() == 0) return false;
  if (grows) {
    r.pages.push_back(gpu_.take_free());
    launch->allocations.push_back({offset, entry, r.pages.back()});
    gpu_.reservations().spend(&r.reserved, 1);
  }
  r.host_pages.push_back(host_.take_free());
  launch->allocations.push_back({offset, entry, r.host_pages.back()});
  host_.reservations().spend(&r.reserved_host, 1);
  ++held_.pages;
  return true;
}

void ResidentKvManager::undo_ahead(Launch* launch, uint32_t left) {
  roll_back(launch, left);
  held_.entries -= launch->members.size() * launch->steps_after(left);
}

void ResidentKvManager::roll_back(Launch* launch, uint32_t offset) {
  for (; !launch->allocations.empty() && launch->allocations.back().offset >= offset;
       launch->allocations.pop_back()) {
    const PageAllocation& allocation = launch->allocations.back();
    Request& r = requests_[launch->members[allocation.entry].request_index];
    const bool host = on_host(allocation.page);
    std::vector<PageId>& pages = host ? r.host_pages : r.pages;
    PageSupply& supply = host ? host_ : gpu_;
    KVT_CHECK(pages.back() == allocation.page);
    pages.pop_back();
    supply.roll_back(allocation.page);
    supply.reservations().unspend(host ? &r.reserved_host : &r.reserved);
    held_.pages -= host ? 1 : 0;
  }
}

HeldEntries ResidentKvManager::held_by(const Launch& launch) const {
  HeldEntries held;
  if (context_.retention.keeps_all()) return held;
  for (const Launch::Member& member : launch.members) {
    const Request& r = requests_[member.request_index];
    const uint32_t tokens = context_.progress[member.request_index].computed;
    held.full += tokens;
    held.kv_entries += tokens - r.dropped;
    held.slots += uint64_t{r.context_pages()} * context_.config.page_tokens;
    ++held.growing;
    ++held.growing_full;
  }
  return held;
}

// --- queries

uint64_t ResidentKvManager::host_pages_after(const Launch& launch, uint32_t started) const {
  const auto pages = static_cast<ptrdiff_t>(launch.pages_after(started));
  return static_cast<uint64_t>(
      std::count_if(launch.allocations.end() - pages, launch.allocations.end(),
                    [this](const PageAllocation& allocation) { return on_host(allocation.page); }));
}

KvUsage ResidentKvManager::usage(std::span<const RequestIndex>, const Launch* newest,
                                 uint32_t started) const {
  KvUsage usage;
  parts_.count_pages(&usage);
  uint64_t pages_ahead = 0, host_ahead = 0, entries_ahead = 0;
  if (newest != nullptr) {
    host_ahead = host_pages_after(*newest, started);
    pages_ahead = newest->pages_after(started) - host_ahead;
    entries_ahead = newest->steps_after(started) * newest->members.size();
  }
  usage.pages_gpu_free += static_cast<uint32_t>(pages_ahead);
  usage.pages_host_free += static_cast<uint32_t>(host_ahead);
  usage.pages_gpu_held = usage.pages_gpu_total - usage.pages_gpu_free;
  usage.entries_held = held_.entries - entries_ahead;
  usage.slots_held = (held_.pages - host_ahead) * context_.config.page_tokens;
  return usage;
}

void ResidentKvManager::check_invariants(std::span<const RequestIndex> live,
                                         std::span<const RequestIndex> running) const {
  parts_.check_invariants();
  uint64_t own = 0, host_own = 0, promised = 0, promised_host = 0, holding = 0;
  HeldKv held;
  const uint32_t page = context_.config.page_tokens;
  for (const RequestIndex request : running) {
    const Request& r = requests_[request];
    const uint32_t computed = context_.progress[request].computed;
    for (const PageId p : r.pages) KVT_CHECK(parts_.gpu.owned(p));
    for (const PageId p : r.host_pages) KVT_CHECK(parts_.host->owned(p));
    KVT_CHECK(uint64_t{r.context_pages()} * page >= computed - r.dropped);
    KVT_CHECK(!r.shrunk || r.pages.size() == gpu_pages_held(spec_, page, r.context_pages()));
    held.entries += computed - r.dropped;
    held.pages += r.context_pages();
  }
  for (const RequestIndex request : live) {
    const Request& r = requests_[request];
    KVT_CHECK(r.holds || (r.pages.empty() && r.context_pages() == 0));
    own += r.pages.size();
    host_own += r.host_pages.size();
    promised += r.reserved.left;
    promised_host += r.reserved_host.left;
    holding += r.holds ? 1 : 0;
  }
  KVT_CHECK(holding == running.size());
  KVT_CHECK(held.entries == held_.entries);
  KVT_CHECK(held.pages == held_.pages);
  gpu_.check_invariants(promised);
  host_.check_invariants(promised_host);
  const TransferManager::PagesInFlight in_flight = parts_.transfers.pages_in_flight();
  KVT_CHECK(parts_.gpu.pages_owned() == own + in_flight.gpu);
  KVT_CHECK(parts_.host->pages_owned() == host_own + parts_.index.pages_gpu() + in_flight.host);
}

// Copies of pages on the host to another engine are not built.
void ResidentKvManager::hand_over(RequestIndex) { KVT_CHECK(!"hand-over of offloaded requests"); }

}  // namespace kvtwin
