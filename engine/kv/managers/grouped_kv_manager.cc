#include "engine/kv/managers/grouped_kv_manager.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin {
GroupedKvManager::GroupedKvManager(KvContext* context)
    : context_(*context),
      retention_(context->retention),
      compressions_(&context->retention),
      checkpoints_(context, &parts_.tiers),
      parts_(context, context->config.pages_gpu, KvParts::Shares::kGpu, checkpoints_.cache(),
             {.index = checkpoints_.index(), .cache = checkpoints_.cache()}),
      supply_(&parts_.gpu, checkpoints_.cache(), &parts_.index, context->config.page_order,
              context->config.evict_batch_pages, &context->draft.evicted),
      transfers_(context, &parts_, &supply_),
      demand_(context, &checkpoints_, &requests_) {}

void GroupedKvManager::open(RequestIndex request, const RequestReady& event) {
  KVT_CHECK(event.emitted == 0);
  if (request >= requests_.size()) requests_.resize(request + 1);
  GroupedRequest& r = requests_[request];
  checkpoints_.open(event, &r.shared);
  r.compression = {.spans = retention_.spans_of(event)};
  r.holds = r.swapped_in = r.unlaunched = r.in_transfer = false;
}

// --- admission

Admission GroupedKvManager::admit(RequestIndex request, const AdmissionAsk& ask) {
  if (!requests_[request].host_pages.empty()) return swap_in(request, ask);
  Admission admission = try_admit(request, ask);
  if (admission.kind == Admission::Kind::kBlocked && admission.tokens > 0 && ask.running.empty() &&
      checkpoints_.bar_reuse(&requests_[request].shared)) {
    admission = try_admit(request, ask);
  }
  return admission;
}

// A request that waits for room retries in every step: it queries counts alone, and gets its pages when it is
// admitted.
Admission GroupedKvManager::try_admit(RequestIndex request, const AdmissionAsk& ask) {
  GroupedRequest& r = requests_[request];
  const RequestProgress& progress = context_.progress[request];
  r.tables.open(&retention_.shape());
  const Match match = checkpoints_.acquire(progress, &r.shared);
  if (match.pages_gpu < match.pin.pages) return load(request, match, ask);
  const uint32_t cached = checkpoints_.stand_behind(match.pin, &r.shared, &r.tables);
  const uint32_t tokens = ask.budget.entry_tokens(progress, cached, false);
  const uint64_t pages = demand_.to_admit(request, cached, tokens);
  // A request that runs alone waits for copies in flight if it lacks pages. None is admitted meanwhile that
  // would have to be preempted for it.
  const uint64_t ahead = parts_.transfers.live() > 0 ? demand_.for_next(ask) : 0;
  // The pin itself may have taken pages that are reserved for others.
  const bool robs =
      supply_.reservations().total() > uint64_t{supply_.pages_free()} + supply_.pages_evictable();
  if (tokens == 0 || robs ||
      pages + ahead + context_.config.watermark_pages > supply_.available(r.reserved)) {
    r.tables.clear(&spare_);
    checkpoints_.release(&r.shared, false);
    return {Admission::Kind::kBlocked, 0, tokens};
  }
  checkpoints_.reuse(r.shared, &r.tables);
  r.shared.reuse_barred = r.shared.load_barred = false;
  r.holds = true;
  r.compression.begin(progress.known(), cached);
  held_.entries += r.tables.kv_entries(cached);
  held_.pages += r.tables.pages();
  if (demand_.reserves()) supply_.reservations().reserve(&r.reserved, pages);
  const bool grown = find_groups(r, request, cached, tokens);
  KVT_CHECK(grown);
  grow_from(request, cached);
  return {Admission::Kind::kNow, cached, tokens};
}

// --- pages of running requests

// Fills wanted_ with the groups that need pages. Returns false if these are not available.
bool GroupedKvManager::find_groups(const GroupedRequest& r, RequestIndex request, uint32_t computed,
                                   uint32_t tokens) {
  GroupTables& tables = requests_[request].tables;
  wanted_.clear();
  if (retention_.staged() && r.fills(computed)) {
    demand_.entries_after(r, computed + tokens, &after_);
    tables.wanted(after_, &wanted_);
  } else {
    tables.wanted(computed, computed + tokens, &wanted_);
  }
  return wanted_.size() <= supply_.available(r.reserved);
}

void GroupedKvManager::grow_from(RequestIndex request, uint32_t computed) {
  GroupedRequest& r = requests_[request];
  const auto more = static_cast<uint32_t>(wanted_.size());
  if (r.swapped_in) list_pages(r, computed);
  stop_borrowing(&r, computed);
  for (uint32_t i = 0; i < more; ++i) {
    const PageId page = supply_.take(more - i);
    r.tables.give(wanted_[i], page);
    context_.draft.allocated.push_back({page, wanted_[i]});
  }
  r.tables.settle();
  supply_.reservations().spend(&r.reserved, more);
  held_.pages += more;
}

Room GroupedKvManager::grow(RequestIndex request, uint32_t tokens) {
  const GroupedRequest& r = requests_[request];
  // The slots of its next KV entries are unknown until the backend has reported the retained counts.
  if (r.compression.answers > 0) return Room::kAwaited;
  const uint32_t computed = context_.progress[request].computed;
  if (!find_groups(r, request, computed, tokens)) {
    const uint64_t coming = parts_.transfers.pages_coming();
    const uint64_t available = supply_.available(r.reserved);
    return coming > 0 && wanted_.size() <= available + coming ? Room::kComing : Room::kNo;
  }
  grow_from(request, computed);
  return Room::kYes;
}

// The entry being planned begins with the pages of the tables: with those that were swapped in, or with those
// of a prefix checkpoint, of which it reads the shared ones in place.
void GroupedKvManager::list_pages(const GroupedRequest& r, uint32_t computed) {
  const GroupTables& tables = r.tables;
  StepDraft& draft = context_.draft;
  const size_t begin = draft.reused.size(), counts = draft.reused_counts.size();
  for (uint32_t g = 0; g < tables.groups(); ++g) {
    for (uint32_t i = 0; i < tables.pages(g); ++i) draft.reused.push_back(tables.page(g, i));
    draft.reused_counts.push_back(tables.kv_entries(g, computed));
  }
  for (uint32_t g = 0; g < tables.groups(); ++g)
    draft.reused_counts.push_back(r.swapped_in ? tables.pages(g) : tables.shared(g));
  draft.add_hit(begin, counts, tables.groups(), r.swapped_in ? 0 : raw(r.shared.last));
}

// The request's next tokens have pages: borrowed pages are copied to the first of these.
void GroupedKvManager::stop_borrowing(GroupedRequest* r, uint32_t computed) {
  GroupTables& tables = r->tables;
  if (!tables.borrows()) return;
  list_pages(*r, computed);
  r->unlaunched = true;
  held_.pages -= tables.pages() - tables.shared();
  tables.drop_borrowed();
}

void GroupedKvManager::hold(RequestIndex request) {
  GroupedRequest& r = requests_[request];
  r.holds = true;
  held_.entries += r.tables.kv_entries(context_.progress[request].computed);
  held_.pages += r.tables.pages();
}

void GroupedKvManager::unhold(RequestIndex request) {
  GroupedRequest& r = requests_[request];
  r.holds = r.swapped_in = r.unlaunched = false;
  held_.entries -= r.tables.kv_entries(context_.progress[request].computed);
  held_.pages -= r.tables.pages();
}

void GroupedKvManager::release(RequestIndex request) {
  GroupedRequest& r = requests_[request];
  unhold(request);
  spare_.clear();
  r.tables.clear(&spare_);
  for (const PageId page : spare_) supply_.free(page);
  checkpoints_.release(&r.shared, true);
  supply_.reservations().drop(&r.reserved);
}

// --- entries, compressions

void GroupedKvManager::write_entry(RequestIndex request, uint32_t entry, Launch* launch) {
  GroupedRequest& r = requests_[request];
  PlanEntry& e = launch->entries[entry];
  const uint32_t tokens = context_.progress[request].computed;
  const LiveEntries live{r.tables.kv_entries(e.context), r.tables.kv_entries(tokens),
                         r.tables.longest(tokens)};
  // Mean over heads.
  e.dropped = e.context - static_cast<uint32_t>(div_ceil<uint64_t>(live.before, r.tables.groups()));
  e.grows = !retention_.ring_full(e.context);
  if (e.kind == EntryKind::kChunk) e.query = compressions_.query(r.compression);
  e.swapped_in = r.swapped_in;
  r.swapped_in = r.unlaunched = false;
  held_.entries += live.after - live.before;
  const bool ring = retention_.slot_retention() == SlotRetention::kRing;
  RequestProgress& progress = context_.progress[request];
  if (!ring && compressions_.is_due(e, live, &r.compression, &progress)) compress(request, entry, launch);
}

void GroupedKvManager::compress(RequestIndex request, uint32_t entry, Launch* launch) {
  GroupedRequest& r = requests_[request];
  const uint32_t tokens = context_.progress[request].computed;
  compressions_.plan(entry, tokens, &r.compression, launch);
  if (retention_.known()) {
    const uint32_t pages = r.tables.pages();
    demand_.entries_after(r, tokens, &after_);
    retain(request, after_);
    reserve_rest(request);
    // The step itself still touches the pages that it leaves.
    if (r.tables.pages() < pages) context_.steps.touched_until = launch->first + 1;
  } else {
    ++r.compression.answers;
    launch->decisive = true;
  }
  if (r.shared.chunks.insert_barred) return;
  const auto id = checkpoints_.plan(tokens, retention_.known(), &r.shared, &r.tables);
  if (id.has_value()) launch->prefix_checkpoints.push_back({entry, raw(*id)});
  // Without further ones, the reservation for their copies is spared.
  if (retention_.known() && r.shared.chunks.insert_barred)
    supply_.reservations().spare(&r.reserved, checkpoints_.tails_ahead(r.shared, r.compression.fill));
}

// Each group now holds `entries` of its KV entries.
void GroupedKvManager::retain(RequestIndex request, std::span<const uint32_t> entries) {
  GroupedRequest& r = requests_[request];
  const RequestProgress& progress = context_.progress[request];
  held_.entries -= r.tables.kv_entries(progress.computed);
  r.tables.keep(progress.computed, entries);
  held_.entries += r.tables.kv_entries(progress.computed);
  spare_.clear();
  r.tables.trim(progress.computed, &spare_);
  held_.pages -= spare_.size();
  for (const PageId page : spare_) supply_.free(page);
}

// The reservation for the whole prompt exceeds the largest future demand of what a compression left.
void GroupedKvManager::reserve_rest(RequestIndex request) {
  if (!context_.reserves_all() || retention_.staged()) return;
  GroupedRequest& r = requests_[request];
  const RequestProgress& progress = context_.progress[request];
  const uint64_t tails =
      r.shared.chunks.insert_barred ? 0 : checkpoints_.tails_ahead(r.shared, r.compression.fill);
  supply_.reservations().reserve(&r.reserved,
                                 r.tables.pages_lacking(progress.prompt + progress.output) + tails);
}

// An impossible answer (from a modified log) is replaced by the nearest possible one.
void GroupedKvManager::answered(const StepDone& event, const Launch& launch) {
  if (retention_.known()) return;
  for (size_t i = 0; i < launch.compressions.size(); ++i) {
    const uint32_t entry = launch.compressions[i].entry;
    const RequestIndex request = launch.members[entry].request_index;
    GroupedRequest& r = requests_[request];
    const auto found = std::find_if(launch.prefix_checkpoints.begin(), launch.prefix_checkpoints.end(),
                                    [entry](const PrefixCheckpoint& s) { return s.entry == entry; });
    const PrefixCheckpoint* const checkpoint = found == launch.prefix_checkpoints.end() ? nullptr : &*found;
    // Preempted meanwhile: it starts again, and its retained KV entries are lost.
    if (!r.holds || r.compression.attempt != launch.attempts[i]) {
      if (checkpoint != nullptr) checkpoints_.roll_back(PrefixCheckpointId{checkpoint->prefix_checkpoint});
      continue;
    }
    --r.compression.answers;
    apply(request, launch, i < event.retained.size() ? event.retained[i] : CompressionOutcome{}, checkpoint);
  }
}

void GroupedKvManager::apply(RequestIndex request, const Launch& launch, const CompressionOutcome& retained,
                             const PrefixCheckpoint* checkpoint) {
  GroupedRequest& r = requests_[request];
  const uint32_t tokens = context_.progress[request].computed;
  after_.clear();
  uint64_t hash = 0;
  for (uint32_t g = 0; g < r.tables.groups(); ++g) {
    const uint32_t had = r.tables.kv_entries(g, tokens);
    const uint32_t least = r.tables.shared(g) * context_.config.page_tokens;  // never ranked again
    after_.push_back(g < retained.counts.size() ? std::clamp(retained.counts[g], least, had) : had);
    hash = chained(hash, after_.back());
  }
  context_.digest.add(DecisionDigest::kRetained, launch.first, raw(r.shared.id), hash);
  retain(request, after_);
  if (checkpoint != nullptr)
    checkpoints_.take(PrefixCheckpointId{checkpoint->prefix_checkpoint}, tokens, &r.shared, &r.tables);
  reserve_rest(request);
}

// --- coalesced steps

uint32_t GroupedKvManager::coalescible_steps(const Launch& launch) const {
  if (checkpoints_.offloads() && context_.steps.closed()) return 1;  // they resume when those have ended
  const bool ring = retention_.slot_retention() == SlotRetention::kRing;
  uint32_t steps = UINT32_MAX;
  for (const Launch::Member& member : launch.members) {
    const uint32_t tokens = context_.progress[member.request_index].computed;
    const GroupTables& tables = requests_[member.request_index].tables;
    steps = std::min(steps, ring ? retention_.steps_until_full(tokens - 1)
                                 : compressions_.steps_left(tokens, tables.longest(tokens)));
  }
  return steps;
}

// Step by step, and in each step the groups that need a page, in the order in which a single step would take
// them.
uint32_t GroupedKvManager::take_ahead(uint32_t steps, Launch* launch) {
  uint32_t able = steps;
  const bool watch_offload = checkpoints_.offloads() && !parts_.transfers.below_offload_target(0);
  for (uint32_t offset = 1; offset < able; ++offset) {
    for (uint32_t entry = 0; entry < launch->members.size(); ++entry) {
      const RequestIndex request = launch->members[entry].request_index;
      GroupedRequest& r = requests_[request];
      for (const uint32_t group : r.tables.crossing(context_.progress[request].computed + offset - 1)) {
        if (r.tables.ring_full(group)) continue;
        // Pages that are reserved for other requests are not taken ahead either.
        if (!supply_.free_page_is_next() || supply_.available(r.reserved) == 0 ||
            (watch_offload && parts_.transfers.below_offload_target(1))) {
          able = offset;
          break;
        }
        const PageId page = supply_.take_free();
        r.tables.give(group, page);
        supply_.reservations().spend(&r.reserved, 1);
        ++held_.pages;
        launch->allocations.push_back({offset, entry, page, group});
      }
      if (able == offset) break;
    }
  }
  roll_back(launch, able);
  for (const Launch::Member& member : launch->members) {
    const uint32_t tokens = context_.progress[member.request_index].computed;
    const GroupTables& tables = requests_[member.request_index].tables;
    held_.entries += tables.kv_entries(tokens + able - 1) - tables.kv_entries(tokens);
  }
  return able;
}

void GroupedKvManager::undo_ahead(Launch* launch, uint32_t left) {
  roll_back(launch, left);
  const auto steps = static_cast<uint32_t>(launch->steps_after(left));
  for (const Launch::Member& member : launch->members) {
    const uint32_t tokens = context_.progress[member.request_index].computed;
    const GroupTables& tables = requests_[member.request_index].tables;
    held_.entries -= tables.kv_entries(tokens) - tables.kv_entries(tokens - steps);
  }
}

void GroupedKvManager::roll_back(Launch* launch, uint32_t offset) {
  for (; !launch->allocations.empty() && launch->allocations.back().offset >= offset;
       launch->allocations.pop_back()) {
    const PageAllocation& allocation = launch->allocations.back();
    GroupedRequest& r = requests_[launch->members[allocation.entry].request_index];
    const PageId page = r.tables.take_last(allocation.group);
    KVT_CHECK(page == allocation.page);
    supply_.roll_back(page);
    supply_.reservations().unspend(&r.reserved);
    --held_.pages;
  }
}

HeldEntries GroupedKvManager::held_by(const Launch& launch) const {
  HeldEntries held;
  const uint32_t groups = retention_.tables();
  for (size_t i = 0; i < launch.members.size(); ++i) {
    const RequestIndex request = launch.members[i].request_index;
    const uint32_t tokens = context_.progress[request].computed;
    const GroupTables& tables = requests_[request].tables;
    held.full += uint64_t{groups} * tokens;
    held.kv_entries += tables.kv_entries(tokens);
    held.slots += uint64_t{tables.pages()} * context_.config.page_tokens;
    held.growing += launch.entries[i].grows ? groups : 0;
    held.growing_full += groups;
  }
  return held;
}

// --- queries

KvUsage GroupedKvManager::usage(std::span<const RequestIndex>, const Launch* newest, uint32_t started) const {
  KvUsage usage;
  parts_.count_pages(&usage);
  uint64_t pages_ahead = 0, entries_ahead = 0;
  if (newest != nullptr) {
    pages_ahead = newest->pages_after(started);
    const auto steps = static_cast<uint32_t>(newest->steps_after(started));
    for (const Launch::Member& member : newest->members) {
      const uint32_t tokens = context_.progress[member.request_index].computed;
      const GroupTables& tables = requests_[member.request_index].tables;
      entries_ahead += tables.kv_entries(tokens) - tables.kv_entries(tokens - steps);
    }
  }
  usage.pages_gpu_free += static_cast<uint32_t>(pages_ahead);
  usage.pages_gpu_cached = supply_.pages_evictable();
  usage.pages_gpu_held = usage.pages_gpu_total - usage.pages_gpu_free - usage.pages_gpu_cached;
  usage.pages_evicted = checkpoints_.pages_evicted();
  usage.entries_held = held_.entries - entries_ahead;
  usage.slots_held = (held_.pages - pages_ahead) * context_.config.page_tokens;
  return usage;
}

void GroupedKvManager::check_invariants(std::span<const RequestIndex> live,
                                        std::span<const RequestIndex> running) const {
  parts_.check_invariants();
  checkpoints_.check_invariants();
  uint64_t own = 0, host_own = 0, promised = 0, holding = 0;
  HeldKv held;
  for (const RequestIndex request : running) {
    const GroupedRequest& r = requests_[request];
    const uint32_t tokens = context_.progress[request].computed;
    r.tables.check(tokens);
    for (uint32_t g = 0; g < r.tables.groups(); ++g) {
      for (uint32_t i = 0; i < r.tables.pages(g); ++i) KVT_CHECK(parts_.gpu.owned(r.tables.page(g, i)));
    }
    held.entries += r.tables.kv_entries(tokens);
    held.pages += r.tables.pages();
    own += r.tables.pages() - r.tables.lent();
  }
  for (const RequestIndex request : live) {
    const GroupedRequest& r = requests_[request];
    promised += r.reserved.left;
    host_own += r.host_pages.size();
    holding += r.holds ? 1 : 0;
    KVT_CHECK(r.holds || (r.tables.pages() == 0 && r.shared.chunks.pin.pages == 0));
  }
  KVT_CHECK(holding == running.size());
  KVT_CHECK(held.entries == held_.entries);
  KVT_CHECK(held.pages == held_.pages);
  supply_.check_invariants(promised);
  const TransferManager::PagesInFlight in_flight = parts_.transfers.pages_in_flight();
  KVT_CHECK(parts_.gpu.pages_owned() == own + checkpoints_.pages() + in_flight.gpu);
  KVT_CHECK(!parts_.host ||
            parts_.host->pages_owned() == host_own + checkpoints_.pages_host() + in_flight.host);
}

}  // namespace kvtwin
