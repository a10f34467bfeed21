// Core: from planned entries to one LaunchStep, coalesced over as many steps as are certain to be alike.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/scheduler/core_state.h"

namespace kvtwin {

void Core::State::launch_planned() {
  uint32_t able = 0;  // requests that could have been in this step
  for (const RequestIndex request_index : running) able += requests[request_index].launched_out() ? 0 : 1;
  if (spare.empty()) spare.emplace_back();
  launches.push_back(std::move(spare.back()));
  spare.pop_back();
  Launch& launch = launches.back();
  launch.clear(launched);
  for (size_t i = 0; i < planned.size(); ++i) commit_entry(i, &launch);
  launch.reused.swap(reused);
  launch.requantisations.swap(requantisations);
  launch.reused_counts.swap(reused_counts);
  for (const Planned& entry : planned) {
    RequestState& request = requests[entry.request_index];
    request.admitted_now = request.swapped_in = false;
    if (entry.reused_begin != entry.reused_end) add_prefix_hit(entry, &launch);
  }
  size_t keep = 0, forced = 0;
  for (Compression& compression : launch.compressions) {  // the vectors no longer grow
    compression.keep = {launch.keep.data() + keep, compression.keep.size()};
    compression.forced = {launch.forced.data() + forced, compression.forced.size()};
    keep += compression.keep.size();
    forced += compression.forced.size();
  }
  // Before pages are allocated ahead: an uncoalesced run would decide here, after this step's allocations.
  start_copies_down();

  const HeldEntries held = retention.keeps_all() && !mixed ? HeldEntries{} : held_by(launch);
  uint32_t repeat = able == planned.size() ? coalesced_steps(launch) : 1;
  if (repeat > 1) repeat = allocate_ahead(repeat, &launch);
  for (const Launch::Member& member : launch.members) {
    RequestState& request = requests[member.request_index];
    if (mixed && repeat > 1) extend_entries(&request, repeat - 1);
    add_tokens(&request, repeat - 1);
    request.sampled += repeat - 1;
    launch.decisive = launch.decisive || request.launched_out();
  }
  launch.end = launched + repeat;
  launched = launch.end;
  uint32_t tokens = 0;
  for (const PlanEntry& entry : launch.entries) tokens += entry.tokens;
  note_launch(launch, tokens);
  out->push_back(LaunchStep{config.engine, StepId{launch.first}, repeat, tokens, padded(tokens),
                            launch.entries, launch.allocations, launch.prefix_hits, launch.compressions, held,
                            launch.formats, launch.requantisations, launch.prefix_checkpoints});
}

void Core::State::add_prefix_hit(const Planned& entry, Launch* launch) {
  const size_t count = entry.reused_end - entry.reused_begin;
  PrefixHit prefix_hit{requests[entry.request_index].id, {launch->reused.data() + entry.reused_begin, count}};
  if (prefix_checkpoints) {
    const uint32_t groups = retention.shape().groups;
    prefix_hit.prefix_checkpoint = raw(entry.prefix_checkpoint);
    prefix_hit.kv_entries = {launch->reused_counts.data() + entry.counts_begin, groups};
    prefix_hit.shared = {launch->reused_counts.data() + entry.counts_begin + groups, groups};
  }
  launch->prefix_hits.push_back(prefix_hit);
}

void Core::State::commit_entry(size_t index_planned, Launch* launch) {
  const Planned& planned_entry = planned[index_planned];
  RequestState& request = requests[planned_entry.request_index];
  const bool decode = request.decodes_next();
  const auto entry = static_cast<uint32_t>(launch->entries.size());
  const uint32_t context = request.kv;
  const uint32_t dropped = context - live_per_head(request);
  const bool grows = !retention.ring_full(context);
  add_tokens(&request, planned_entry.tokens);
  const bool samples = request.kv == request.known() && request.sampled < request.output;
  if (samples) ++request.sampled;
  ++request.launches;
  launch->entries.push_back({request.id, decode ? EntryKind::kDecode : EntryKind::kChunk,
                             request.admitted_now || request.swapped_in, samples, planned_entry.tokens,
                             context, dropped, mixed ? request.low_bit : 0,
                             mixed ? request.kv_entries.reused_in_part : 0, grows, request.key});
  launch->members.push_back({planned_entry.request_index, request.id, samples});
  for (size_t i = planned_entry.allocated_begin; i < planned_entry.allocated_end; ++i) {
    launch->allocations.push_back({0, entry, allocated[i].page, allocated[i].group});
  }
  if (mixed) {
    request.settled = logical_pages_settled(request);
    for (size_t i = decode ? planned_entry.bits_end : planned_entry.bits_begin; i < planned_entry.bits_end;
         ++i)
      launch->formats.push_back({entry, bits[i].count, bits[i].four});
  }
  if (!retention.keeps_all()) {
    if (compresses(request, context)) compress(&request, entry, launch);
    if (request.kv >= request.fill) request.due = false;
    if (!resident) return;
  }
  if (resident && samples && !request.in_resident) shrink_to_resident(&request);
  if (decode) return;
  if (resident) {
    launch->decisive = launch->decisive || config.prefix_cache;  // its end publishes pages
  } else {
    publish_pages(&request, std::min(pages_settled(request, request.kv), request.pages_public));
  }
}

// Number of steps, this one included, that are certain to have the same entries, each one token later.
uint32_t Core::State::coalesced_steps(const Launch& launch) const {
  if (preempted_now || evicted_now || admission_open || !launch.compressions.empty()) return 1;
  if (tiered() && preempted_until > done) return 1;  // offloads resume when those steps have ended
  for (size_t i = 0; i + 1 < launches.size(); ++i) {
    if (launches[i].decisive) return 1;
  }
  uint32_t steps = config.repeat_max;
  for (size_t i = 0; i < launch.entries.size(); ++i) {
    if (launch.entries[i].kind != EntryKind::kDecode) return 1;
    // It was planned as a waiting request. From the next step on it has another position in the plan, and
    // pages are allocated in that order.
    if (launch.entries[i].first) return 1;
    const RequestState& request = requests[launch.members[i].request_index];
    steps = std::min(steps, request.output - request.sampled + 1);
    if (!retention.keeps_all()) steps = std::min(steps, coalescible_steps_left(request));
    for (size_t t = request.next_trigger; t < request.triggers.size(); ++t) {
      if (request.triggers[t] < request.sampled) continue;
      steps = std::min(steps, request.triggers[t] - request.sampled + 1);
      break;
    }
  }
  return steps;
}

// Allocates the pages that steps 1 .. steps-1 of the launch will fill, in step-major order, as long as that
// evicts nothing and triggers no offload. Returns the number of steps that have all their pages.
uint32_t Core::State::allocate_ahead(uint32_t steps, Launch* launch) {
  if (retention.by_group()) return allocate_ahead_groups(steps, launch);
  if (mixed) return allocate_ahead_entries(steps, launch);
  const uint32_t page = config.page_tokens;
  const bool watch_offload = tiered() && !transfers.below_offload_target(0);
  // Each request needs a new page once in every `page` steps; sort these steps once.
  crossings.clear();
  for (uint32_t entry = 0; entry < launch->members.size(); ++entry) {
    const RequestState& request = requests[launch->members[entry].request_index];
    // kv already includes this step: step 1 writes position kv.
    const uint32_t spans = resident ? table_pages(request) : request.pages_span();
    const uint32_t kv_entries = resident ? request.kv - request.dropped_tokens : request.kv;
    crossings.push_back({spans * page - kv_entries + 1, entry});
  }
  std::sort(crossings.begin(), crossings.end());
  for (uint32_t window = 0; window < steps; window += page) {
    for (const auto& [first, entry] : crossings) {
      const uint32_t offset = first + window;
      if (offset >= steps) break;
      if (resident) {
        if (allocate_resident_page(entry, offset, launch)) continue;
        roll_back_allocations(launch, offset);
        return offset;
      }
      if (!free_page_is_next() || (watch_offload && transfers.below_offload_target(1))) {
        roll_back_allocations(launch, offset);
        return offset;
      }
      RequestState& request = requests[launch->members[entry].request_index];
      const PageId taken = gpu.acquire();
      request.pages.push_back(taken);
      note_taken(&request, 1);
      launch->allocations.push_back({offset, entry, taken});
    }
  }
  return steps;
}

namespace {

// Follows an entry with the fingerprint of a batch. It is the same in every step of a coalesced run:
// positions count from `step`, and of context and dropped KV entries, it has the one that does not advance
// with them.
uint64_t with_entry(uint64_t batch, const PlanEntry& entry, uint64_t step) {
  const uint64_t flags = (entry.first ? 1u : 0u) | (entry.samples ? 2u : 0u) | (entry.grows ? 4u : 0u);
  const uint64_t fixed = entry.grows ? entry.dropped : entry.live();
  return chained(batch, raw(entry.request) | uint64_t{entry.tokens} << 32, entry.context - step,
                 flags | static_cast<uint64_t>(entry.kind) << 8 | fixed << 32,
                 entry.low_bit | uint64_t{entry.shared_in_part} << 32);
}

}  // namespace

// Steps that only repeat the step before add no record, so that coalescing changes nothing.
void Core::State::note_launch(const Launch& launch, uint32_t tokens) {
  uint64_t batch = launch.entries.size();
  for (const PlanEntry& entry : launch.entries) batch = with_entry(batch, entry, launch.first);
  if (batch != batch_last) digest.add(kStep, launch.first, batch, tokens, padded(tokens));
  batch_last = batch;
  for (const PageAllocation& allocation : launch.allocations) note_allocation(launch, allocation, true);
  for (const Compression& c : launch.compressions) note_compression(launch, c);
  for (const FormatRun& run : launch.formats) {
    digest.add(kFormats, launch.first, raw(launch.members[run.entry].request), run.count, run.four);
  }
  for (const Requantisation& ageing : launch.requantisations) {
    digest.add(kAged, launch.first, raw(ageing.source), raw(ageing.target), ageing.position, ageing.count);
  }
  for (const PrefixHit& hit : launch.prefix_hits) {
    const uint64_t counts = chained(chained_all(hit.kv_entries), chained_all(hit.shared));
    digest.add(kReused, launch.first, raw(hit.request), chained_all(hit.pages), hit.prefix_checkpoint,
               counts);
  }
  for (const PrefixCheckpoint& checkpoint : launch.prefix_checkpoints) {
    digest.add(kCheckpointPlanned, launch.first, raw(launch.members[checkpoint.entry].request),
               checkpoint.prefix_checkpoint);
  }
}

void Core::State::note_compression(const Launch& launch, const Compression& c) {
  uint64_t forced = c.forced.size();
  for (const Compression::Forced& range : c.forced) forced = chained(forced, range.begin, range.end);
  const uint64_t flags = (c.staged ? 1u : 0u) | (c.before ? 2u : 0u);
  digest.add(kCompressed, launch.first, raw(launch.members[c.entry].request), c.begin, c.end, flags, forced,
             chained_all(c.keep));
}

uint32_t Core::State::padded(uint32_t tokens) const {
  const auto size = std::lower_bound(config.capture_sizes.begin(), config.capture_sizes.end(), tokens);
  return size == config.capture_sizes.end() ? tokens : *size;
}

}  // namespace kvtwin
