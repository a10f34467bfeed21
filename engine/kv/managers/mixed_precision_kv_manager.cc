#include "engine/kv/managers/mixed_precision_kv_manager.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"

namespace kvtwin {
namespace {

// Logical pages with a KV entry in a page, and those whose KV entries all wait.
uint32_t logical_pages_max(const CoreConfig& c) {
  const uint64_t waiting = uint64_t{c.requests_max} * (c.page_tokens + 1);
  return static_cast<uint32_t>(std::min<uint64_t>(c.pages_gpu + waiting, UINT32_MAX / 2));
}

// Copies on the host: each has KV entries for as many slots as a page has.
uint32_t copies_max(const CoreConfig& c) {
  return c.prefix_cache && c.offload_pages_target > 0 ? c.pages_host : 0;
}

}  // namespace

MixedPrecisionKvManager::MixedPrecisionKvManager(KvContext* context)
    : context_(*context),
      pool_({context->config.pages_int2, context->config.pages_gpu - context->config.pages_int2},
            context->config.page_tokens,
            context->config.policies.precision_spec.ageing == Ageing::kRequantise,
            {&parts_.tiers, PageId{logical_pages_max(context->config)}, copies_max(context->config)}),
      parts_(context, logical_pages_max(context->config), KvParts::Shares::kGpu, &pool_,
             {.room = &pool_, .copies = pool_.copies()}),
      crossings_(context->config.page_tokens) {}

void MixedPrecisionKvManager::open(RequestIndex request, const RequestReady& event) {
  KVT_CHECK(event.emitted == 0);
  if (request >= requests_.size()) requests_.resize(request + 1);
  Request& r = requests_[request];
  r.id = event.request;
  r.session = event.session;
  r.unlaunched = r.swapped_in = r.in_transfer = r.load_barred = false;
  r.prefix.open(context_, event, context_.config.page_tokens);
  r.reuse_barred = false;
  MixedPrecisionPool::reset(&r.entries);
  r.entries.prompt = event.prompt_tokens;
  r.entries.bits.clear();
  bits_of(event.roles, event.turn, event.prompt_tokens, context_.config.policies.precision_spec,
          &r.entries.bits);
}

uint32_t MixedPrecisionKvManager::available(const Request& r, bool four) const {
  const uint64_t had = uint64_t{pool_.pages_free(four)} + pool_.pages_evictable(four);
  const uint64_t others = four ? reserved_4_.of_others(r.reserved_4) : reserved_2_.of_others(r.reserved_2);
  return static_cast<uint32_t>(had > others ? had - others : 0);
}

uint32_t MixedPrecisionKvManager::settled(const Request& r, uint32_t tokens) const {
  return std::min(tokens / context_.config.page_tokens, settled_now(r));
}

// --- admission

// Pages of its prefix also hold KV entries of others; alone, the request fits without them (RequestFit).
Admission MixedPrecisionKvManager::admit(RequestIndex request, const AdmissionAsk& ask) {
  Request& r = requests_[request];
  if (!r.host_pages.empty()) {
    const Admission admission = swap_in(request, ask);
    const bool alone = ask.running.empty() && parts_.transfers.live() == 0 && !context_.steps.closed();
    if (admission.kind != Admission::Kind::kBlocked || admission.tokens == 0 || !alone) return admission;
    forget(&r);
    r.reuse_barred = true;
    context_.progress[request].computed = 0;
  }
  Admission admission = try_admit(request, ask);
  if (admission.kind == Admission::Kind::kBlocked && admission.tokens > 0 && admission.computed > 0 &&
      ask.running.empty()) {
    r.reuse_barred = true;
    admission = try_admit(request, ask);
  }
  return admission;
}

// If blocked, returns the tokens that it would have reused.
Admission MixedPrecisionKvManager::try_admit(RequestIndex request, const AdmissionAsk& ask) {
  Request& r = requests_[request];
  const RequestProgress& progress = context_.progress[request];
  const uint32_t page = context_.config.page_tokens;
  Match match;
  if (const uint32_t most = r.prefix.reusable(progress, page); most > 0 && !r.reuse_barred) {
    match = r.load_barred ? parts_.index.acquire_on_gpu(r.prefix.name_space, r.prefix.identity, most)
                          : parts_.index.acquire(r.prefix.name_space, r.prefix.identity, most);
    if (match.pages_gpu < match.pin.pages) return load(request, match, ask);
  }
  const uint32_t cached = match.pin.pages * page;
  logical_pages_.clear();
  reusing_.clear();
  parts_.index.gpu_pages(match.pin, &logical_pages_);
  pool_.begin(cached, logical_pages_, &r.entries, &reusing_);
  const uint32_t tokens = ask.budget.entry_tokens(progress, cached, false);
  const uint32_t covered = context_.tokens_covered(progress, cached, tokens) - cached;
  const MixedPrecisionDemand demand = pool_.demand(r.entries, covered, available(r, false));
  // The pin itself may have taken pages that are reserved for others.
  const bool robs = reserved_4_.total() > uint64_t{pool_.pages_free(true)} + pool_.pages_evictable(true) ||
                    reserved_2_.total() > uint64_t{pool_.pages_free(false)} + pool_.pages_evictable(false);
  // A request that runs alone waits for copies in flight if it lacks pages. None is admitted meanwhile that
  // would have to be preempted for it.
  const uint64_t ahead = parts_.transfers.live() > 0 ? pages_4_for_next(ask) : 0;
  if (tokens == 0 || robs || demand.pages_4 + ahead + context_.config.watermark_pages > available(r, true)) {
    MixedPrecisionPool::reset(&r.entries);
    parts_.index.release(match.pin, false);
    return {Admission::Kind::kBlocked, cached, tokens};
  }
  if (context_.config.policies.precision_spec.ageing == Ageing::kRequantise && cached > 0) {
    age(r, match.pin, demand.pages_2);
    reusing_.clear();
    pool_.begin(cached, logical_pages_, &r.entries, &reusing_);
  }
  r.prefix.pin = match.pin;
  r.prefix.insert_barred = r.reuse_barred = r.load_barred = false;
  r.unlaunched = true;
  r.settled = UINT32_MAX;
  held_.entries += cached;
  held_.pages += r.entries.reused_pages;
  if (context_.reserves_all()) {
    reserved_4_.reserve(&r.reserved_4, demand.pages_4);
    reserved_2_.reserve(&r.reserved_2, demand.pages_2);
  }
  StepDraft& draft = context_.draft;
  const size_t reused = draft.reused.size();
  draft.reused.insert(draft.reused.end(), reusing_.begin(), reusing_.end());
  draft.add_hit(reused);
  const bool grown = grow_from(request, cached, tokens);
  KVT_CHECK(grown);
  return {Admission::Kind::kNow, cached, tokens};
}

// Turns have aged since the prefix was written (docs/design/methods/triaxialkv.md#serving). KV entries that
// have 2 bits by now are requantised, as far as int2 pages are free: no cached prefix is evicted for them,
// and the rest waits for the next turn. KV entries that another request reads do not change. REQUIRES:
// logical_pages_ are the prefix's.
void MixedPrecisionKvManager::age(const Request& r, const Pin& prefix, uint32_t pages_2_wanted) {
  alone_.clear();
  for (uint32_t i = 0; i < prefix.pages; ++i) alone_.push_back(parts_.index.sole(prefix, i) ? 1 : 0);
  const uint32_t left = available(r, false) - pages_2_wanted;
  pool_.age(r.entries, logical_pages_, alone_, std::min(left, pool_.pages_free(false)),
            &context_.draft.requantisations);
}

// --- pages of running requests

bool MixedPrecisionKvManager::grow_from(RequestIndex request, uint32_t computed, uint32_t tokens) {
  Request& r = requests_[request];
  const MixedPrecisionDemand demand = pool_.demand(r.entries, tokens, available(r, false));
  if (demand.pages_4 > available(r, true)) return false;
  make_room(demand);
  StepDraft& draft = context_.draft;
  if (r.swapped_in) {
    const size_t listed = draft.reused.size();
    pool_.list_pages(r.pages, &draft.reused);
    draft.add_hit(listed);
    r.unlaunched = true;
  }
  add_logical_pages(&r, computed + tokens);
  r.low_bit = r.entries.reused_entries_2 + r.entries.pages_2 * context_.config.page_tokens;
  newly_taken_.clear();
  bits_.clear();
  pool_.append(tokens, demand.pages_2, r.logical_pages(), &r.entries, &newly_taken_, &bits_);
  KVT_CHECK(newly_taken_.size() == demand.pages_2 + demand.pages_4);
  for (const PageId page : newly_taken_) draft.allocated.push_back({page, 0});
  draft.bits.insert(draft.bits.end(), bits_.begin(), bits_.end());
  reserved_2_.spend(&r.reserved_2, demand.pages_2);
  reserved_4_.spend(&r.reserved_4, demand.pages_4);
  held_.pages += demand.pages_2 + demand.pages_4;
  return true;
}

Room MixedPrecisionKvManager::grow(RequestIndex request, uint32_t tokens) {
  if (grow_from(request, context_.progress[request].computed, tokens)) return Room::kYes;
  const Request& r = requests_[request];
  const uint32_t more = pool_.demand(r.entries, tokens, available(r, false)).pages_4;
  return coming_4_ > 0 && more <= uint64_t{available(r, true)} + coming_4_ ? Room::kComing : Room::kNo;
}

// Evicts until the demanded pages are free. REQUIRES: that many are free or evictable.
void MixedPrecisionKvManager::make_room(const MixedPrecisionDemand& demand) {
  const auto short_of = [&] {
    return pool_.pages_free(false) < demand.pages_2 || pool_.pages_free(true) < demand.pages_4;
  };
  if (!short_of()) return;
  context_.draft.evicted = true;
  const uint32_t batch = context_.config.evict_batch_pages;
  for (uint32_t i = 0; short_of() || (i < batch && parts_.index.pages_evictable() > 0); ++i)
    parts_.tiers.free_gpu(parts_.index.evict_gpu_page());
}

void MixedPrecisionKvManager::add_logical_pages(Request* r, uint32_t tokens) {
  while (uint64_t{r->span()} * context_.config.page_tokens < tokens) {
    const PageId logical_page = parts_.gpu.acquire();
    pool_.hold({&logical_page, 1}, true);
    r->pages.push_back(logical_page);
  }
}

void MixedPrecisionKvManager::publish(RequestIndex request, uint32_t tokens) {
  Request& r = requests_[request];
  const uint32_t limit = settled(r, context_.progress[request].computed + tokens);
  r.prefix.publish(std::min(limit, r.prefix.places_public), {}, &parts_.index, &r.pages);
}

void MixedPrecisionKvManager::write_entry(RequestIndex request, uint32_t entry, Launch* launch) {
  Request& r = requests_[request];
  PlanEntry& e = launch->entries[entry];
  held_.entries += e.tokens;
  e.low_bit = r.low_bit;
  e.pages_reused_in_part = r.entries.reused_in_part;
  e.swapped_in = r.swapped_in;
  r.swapped_in = r.unlaunched = false;
  r.settled = settled_now(r);
  if (e.kind != EntryKind::kDecode) publish(request, 0);
}

void MixedPrecisionKvManager::release(RequestIndex request, bool preempted) {
  Request& r = requests_[request];
  const uint32_t computed = context_.progress[request].computed;
  held_.entries -= computed;
  held_.pages -= r.entries.pages();
  // An entry that was planned for it in this step will not be computed.
  const uint32_t limit = std::min(r.settled, computed / context_.config.page_tokens);
  r.prefix.publish(std::min(limit, preempted ? r.prefix.places_known : r.prefix.places_public), {},
                   &parts_.index, &r.pages);
  for (auto page = r.pages.rbegin(); page != r.pages.rend(); ++page) parts_.tiers.free_gpu(*page);
  r.pages.clear();
  parts_.index.mark(r.prefix.pin, r.session);
  parts_.index.release(r.prefix.pin, true);
  r.prefix.pin = {};
  reserved_2_.drop(&r.reserved_2);
  reserved_4_.drop(&r.reserved_4);
  r.swapped_in = false;
  MixedPrecisionPool::reset(&r.entries);
}

// --- coalesced steps

uint32_t MixedPrecisionKvManager::coalescible_steps(const Launch&) const {
  return offloads() && context_.steps.closed() ? 1 : UINT32_MAX;  // they resume when those have ended
}

uint32_t MixedPrecisionKvManager::take_ahead(uint32_t steps, Launch* launch) {
  const uint32_t page = context_.config.page_tokens;
  const bool watch_offload = offloads() && !parts_.transfers.below_offload_target(0);
  crossings_.clear();
  for (uint32_t entry = 0; entry < launch->members.size(); ++entry) {
    const MixedPrecisionPool::Request& entries = requests_[launch->members[entry].request_index].entries;
    const auto room = static_cast<uint32_t>(entries.pages_4.size()) * page;
    crossings_.add(entry, room - entries.entries_4);
  }
  const uint32_t able = crossings_.visit(steps, [&](uint32_t entry, uint32_t offset) {
    if (pool_.pages_free(true) == 0 || (watch_offload && parts_.transfers.below_offload_target(1)))
      return false;
    Request& r = requests_[launch->members[entry].request_index];
    launch->allocations.push_back({offset, entry, pool_.take_ahead(&r.entries)});
    reserved_4_.spend(&r.reserved_4, 1);
    ++held_.pages;
    return true;
  });
  roll_back(launch, able);
  for (const Launch::Member& member : launch->members) {
    append_decoded(&requests_[member.request_index], context_.progress[member.request_index].computed,
                   able - 1);
  }
  held_.entries += launch->members.size() * uint64_t{able - 1};
  return able;
}

// KV entries of further steps, whose pages were taken ahead.
void MixedPrecisionKvManager::append_decoded(Request* r, uint32_t computed, uint32_t tokens) {
  if (tokens == 0) return;
  add_logical_pages(r, computed + tokens);
  newly_taken_.clear();
  bits_.clear();
  pool_.append(tokens, 0, r->logical_pages(), &r->entries, &newly_taken_, &bits_);
  KVT_CHECK(newly_taken_.empty());
}

// Removes decoded KV entries exactly as if they had not been planned.
void MixedPrecisionKvManager::undo_ahead(Launch* launch, uint32_t left) {
  roll_back(launch, left);
  const auto steps = static_cast<uint32_t>(launch->steps_after(left));
  for (const Launch::Member& member : launch->members) {
    Request& r = requests_[member.request_index];
    const uint32_t tokens = context_.progress[member.request_index].computed - steps;
    pool_.truncate(tokens, r.logical_pages(), &r.entries);
    for (; uint64_t{r.span() - 1} * context_.config.page_tokens >= tokens; r.pages.pop_back())
      parts_.tiers.free_gpu(r.pages.back());
  }
  held_.entries -= launch->members.size() * uint64_t{steps};
}

void MixedPrecisionKvManager::roll_back(Launch* launch, uint32_t offset) {
  for (; !launch->allocations.empty() && launch->allocations.back().offset >= offset;
       launch->allocations.pop_back()) {
    Request& r = requests_[launch->members[launch->allocations.back().entry].request_index];
    pool_.roll_back_page(r.logical_pages(), &r.entries);
    reserved_4_.unspend(&r.reserved_4);
    --held_.pages;
  }
}

// Nothing is dropped; KV entries that wait for a full group have slots in staging.
HeldEntries MixedPrecisionKvManager::held_by(const Launch& launch) const {
  HeldEntries held;
  for (const Launch::Member& member : launch.members) {
    const Request& r = requests_[member.request_index];
    held.kv_entries += context_.progress[member.request_index].computed;
    held.slots += uint64_t{r.entries.pages()} * context_.config.page_tokens + r.entries.waiting.size();
    ++held.growing;
  }
  return held;
}

// --- queries

KvUsage MixedPrecisionKvManager::usage(std::span<const RequestIndex> running, const Launch* newest,
                                       uint32_t started) const {
  KvUsage usage;
  parts_.count_pages(&usage);
  const uint64_t pages_ahead = newest == nullptr ? 0 : newest->pages_after(started);
  const uint64_t entries_ahead =
      newest == nullptr ? 0 : newest->steps_after(started) * newest->members.size();
  usage.pages_gpu_total = context_.config.pages_gpu;
  usage.pages_gpu_free =
      pool_.pages_free(false) + pool_.pages_free(true) + static_cast<uint32_t>(pages_ahead);
  usage.pages_gpu_cached = pool_.pages_evictable(false) + pool_.pages_evictable(true);
  usage.pages_gpu_held = usage.pages_gpu_total - usage.pages_gpu_free - usage.pages_gpu_cached;
  usage.pages_int2_total = context_.config.pages_int2;
  usage.pages_int2_held = usage.pages_int2_total - pool_.pages_free(false) - pool_.pages_evictable(false);
  usage.entries_held = held_.entries - entries_ahead;
  usage.slots_held = (held_.pages - pages_ahead) * context_.config.page_tokens;
  for (const RequestIndex request : running) usage.slots_held += requests_[request].entries.waiting.size();
  return usage;
}

void MixedPrecisionKvManager::check_invariants(std::span<const RequestIndex> live,
                                               std::span<const RequestIndex> running) const {
  parts_.check_invariants();
  uint64_t own = 0, host_own = 0, promised_2 = 0, promised_4 = 0, coming_4 = 0;
  HeldKv held;
  for (const RequestIndex request : running) {
    const Request& r = requests_[request];
    const uint32_t computed = context_.progress[request].computed;
    for (const PageId page : r.pages) KVT_CHECK(parts_.gpu.owned(page));
    KVT_CHECK(r.entries.at == computed);
    KVT_CHECK(uint64_t{r.span()} * context_.config.page_tokens >= computed);
    held.entries += computed;
    held.pages += r.entries.pages();
  }
  for (const RequestIndex request : live) {
    own += requests_[request].pages.size();
    host_own += requests_[request].host_pages.size();
    coming_4 += requests_[request].coming_4;
    promised_2 += requests_[request].reserved_2.left;
    promised_4 += requests_[request].reserved_4.left;
  }
  KVT_CHECK(held.entries == held_.entries);
  KVT_CHECK(held.pages == held_.pages);
  KVT_CHECK(promised_2 == reserved_2_.total() && promised_4 == reserved_4_.total());
  KVT_CHECK(coming_4 == coming_4_);
  const TransferManager::PagesInFlight in_flight = parts_.transfers.pages_in_flight();
  own += in_flight.gpu;
  KVT_CHECK(parts_.gpu.pages_owned() == own + parts_.index.pages_gpu());
  KVT_CHECK(!parts_.host || parts_.host->pages_owned() == host_own + pool_.pages_host() + in_flight.host);
  pool_.check_invariants(own + parts_.index.pages_gpu() - parts_.index.pages_evictable());
  for (const bool four : {false, true}) {
    KVT_CHECK((four ? promised_4 : promised_2) <=
              uint64_t{pool_.pages_free(four)} + pool_.pages_evictable(four));
  }
}

}  // namespace kvtwin
