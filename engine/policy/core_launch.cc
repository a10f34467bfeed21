// From planned entries to one LaunchStep, folded over as many steps as are certain to be alike.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/policy/core_state.h"

namespace kvtwin {

void Core::State::launch_planned() {
  uint32_t able = 0;  // calls that could have been in this step
  for (const Slot slot : running) able += calls[slot].launched_out() ? 0 : 1;
  if (spare.empty()) spare.emplace_back();
  launches.push_back(std::move(spare.back()));
  spare.pop_back();
  Launch& launch = launches.back();
  launch.clear(launched);
  for (size_t i = 0; i < planned.size(); ++i) commit_entry(i, &launch);
  launch.adopted.swap(adopted);
  launch.ageings.swap(ageings);
  launch.adopted_counts.swap(adopted_counts);
  for (const Planned& entry : planned) {
    CallState& call = calls[entry.slot];
    call.admitted_now = call.resumed = false;
    if (entry.adopted_begin != entry.adopted_end) add_adoption(entry, &launch);
  }
  size_t keep = 0, forced = 0;
  for (Compression& compression : launch.compressions) {  // now that the lists no longer move
    compression.keep = {launch.keep.data() + keep, compression.keep.size()};
    compression.forced = {launch.forced.data() + forced, compression.forced.size()};
    keep += compression.keep.size();
    forced += compression.forced.size();
  }
  // Before pages are taken ahead: an unfolded run would decide here, with this step's pages gone.
  start_copies_down();

  const HeldCells held = retention.keeps_all() && !dual ? HeldCells{} : held_by(launch);
  uint32_t repeat = able == planned.size() ? quiet_steps(launch) : 1;
  if (repeat > 1) repeat = grant_ahead(repeat, &launch);
  for (const Launch::Member& member : launch.members) {
    CallState& call = calls[member.slot];
    if (dual && repeat > 1) extend_cells(&call, repeat - 1);
    add_tokens(&call, repeat - 1);
    call.sampled += repeat - 1;
    launch.decisive = launch.decisive || call.launched_out();
  }
  launch.end = launched + repeat;
  launched = launch.end;
  uint32_t tokens = 0;
  for (const PlanEntry& entry : launch.entries) tokens += entry.tokens;
  note_launch(launch, tokens);
  out->push_back(LaunchStep{config.engine, StepId{launch.first}, repeat, tokens, padded(tokens),
                            launch.entries, launch.grants, launch.adoptions, launch.compressions, held,
                            launch.formats, launch.ageings, launch.snapshots});
}

void Core::State::add_adoption(const Planned& entry, Launch* launch) {
  const size_t count = entry.adopted_end - entry.adopted_begin;
  Adoption adoption{calls[entry.slot].id, {launch->adopted.data() + entry.adopted_begin, count}};
  if (snapshots) {
    const uint32_t groups = retention.shape().groups;
    adoption.snapshot = raw(entry.snapshot);
    adoption.cells = {launch->adopted_counts.data() + entry.counts_begin, groups};
    adoption.shared = {launch->adopted_counts.data() + entry.counts_begin + groups, groups};
  }
  launch->adoptions.push_back(adoption);
}

void Core::State::commit_entry(size_t index_planned, Launch* launch) {
  const Planned& planned_entry = planned[index_planned];
  CallState& call = calls[planned_entry.slot];
  const bool decode = call.decodes_next();
  const auto entry = static_cast<uint32_t>(launch->entries.size());
  const uint32_t context = call.kv;
  const uint32_t gone = context - live_per_head(call);
  const bool grows = !retention.ring_full(context);
  add_tokens(&call, planned_entry.tokens);
  const bool samples = call.kv == call.known() && call.sampled < call.output;
  if (samples) ++call.sampled;
  ++call.launches;
  launch->entries.push_back({call.id, decode ? EntryKind::kDecode : EntryKind::kChunk,
                             call.admitted_now || call.resumed, samples, planned_entry.tokens, context, gone,
                             dual ? call.narrow : 0, dual ? call.cells.adopted_in_part : 0, grows, call.key});
  launch->members.push_back({planned_entry.slot, call.id, samples});
  for (size_t i = planned_entry.granted_begin; i < planned_entry.granted_end; ++i) {
    launch->grants.push_back({0, entry, granted[i].page, granted[i].group});
  }
  if (dual) {
    call.settled = frames_settled(call);
    for (size_t i = decode ? planned_entry.bits_end : planned_entry.bits_begin; i < planned_entry.bits_end;
         ++i)
      launch->formats.push_back({entry, bits[i].count, bits[i].four});
  }
  if (!retention.keeps_all()) {
    if (compresses(call, context)) compress(&call, entry, launch);
    if (call.kv >= call.fill) call.due = false;
    if (!arena) return;
  }
  if (arena && samples && !call.in_arena) shrink_to_arena(&call);
  if (decode) return;
  if (arena) {
    launch->decisive = launch->decisive || config.prefix_cache;  // then it publishes
  } else {
    publish_pages(&call, std::min(pages_settled(call, call.kv), call.pages_public));
  }
}

// How many steps, this one included, are certain to have these entries again, one token later each.
uint32_t Core::State::quiet_steps(const Launch& launch) const {
  if (preempted_now || evicted_now || admission_open || !launch.compressions.empty()) return 1;
  if (tiered() && preempted_until > done) return 1;  // cleaning resumes when those steps have ended
  for (size_t i = 0; i + 1 < launches.size(); ++i) {
    if (launches[i].decisive) return 1;
  }
  uint32_t steps = config.repeat_max;
  for (size_t i = 0; i < launch.entries.size(); ++i) {
    if (launch.entries[i].kind != EntryKind::kDecode) return 1;
    // It was planned as a waiting call; from the next step on it stands in another place of the plan, and
    // pages are taken in that order.
    if (launch.entries[i].first) return 1;
    const CallState& call = calls[launch.members[i].slot];
    steps = std::min(steps, call.output - call.sampled + 1);
    if (!retention.keeps_all()) steps = std::min(steps, quiet_steps_left(call));
    for (size_t t = call.next_trigger; t < call.triggers.size(); ++t) {
      if (call.triggers[t] < call.sampled) continue;
      steps = std::min(steps, call.triggers[t] - call.sampled + 1);
      break;
    }
  }
  return steps;
}

// Takes the pages that steps 1 .. steps-1 of the launch will fill, in step-major order, as long as that
// evicts nothing and does not call for cleaning. Returns how many steps have all they need.
uint32_t Core::State::grant_ahead(uint32_t steps, Launch* launch) {
  if (retention.by_group()) return grant_ahead_groups(steps, launch);
  if (dual) return grant_ahead_cells(steps, launch);
  const uint32_t page = config.page_tokens;
  const bool watch_clean = tiered() && !below_clean_target(0);
  // Each call crosses into a new page once in every `page` steps; order the crossings once.
  crossings.clear();
  for (uint32_t entry = 0; entry < launch->members.size(); ++entry) {
    const CallState& call = calls[launch->members[entry].slot];
    // kv counts this step already: step 1 writes position kv.
    const uint32_t spans = arena ? table_pages(call) : call.pages_span();
    const uint32_t cells = arena ? call.kv - call.dead : call.kv;
    crossings.push_back({spans * page - cells + 1, entry});
  }
  std::sort(crossings.begin(), crossings.end());
  for (uint32_t window = 0; window < steps; window += page) {
    for (const auto& [first, entry] : crossings) {
      const uint32_t offset = first + window;
      if (offset >= steps) break;
      if (arena) {
        if (grant_arena_page(entry, offset, launch)) continue;
        give_back_grants(launch, offset);
        return offset;
      }
      if (!free_page_is_next() || (watch_clean && below_clean_target(1))) {
        give_back_grants(launch, offset);
        return offset;
      }
      CallState& call = calls[launch->members[entry].slot];
      const PageId taken = gpu.acquire();
      call.pages.push_back(taken);
      note_taken(&call, 1);
      launch->grants.push_back({offset, entry, taken});
    }
  }
  return steps;
}

void Core::State::note_launch(const Launch& launch, uint32_t tokens) {
  bool all_decode = true;
  for (size_t i = 0; i < launch.entries.size(); ++i) {
    const PlanEntry& entry = launch.entries[i];
    if (entry.kind == EntryKind::kDecode) continue;
    all_decode = false;
    note({kEntry, launch.first, i, raw(entry.call), entry.tokens, entry.context});
  }
  // Steps that only repeat the step before leave no mark, so that folding leaves none either.
  if (!all_decode || launch.entries.size() != entries_last) {
    note({kStep, launch.first, launch.entries.size(), tokens});
  }
  entries_last = launch.entries.size();
  for (const PageGrant& grant : launch.grants) note_grant(launch, grant);
  for (const Compression& c : launch.compressions) {
    uint64_t hash = c.keep.size();
    for (const uint32_t keep : c.keep) hash = hash * 0x9e3779b97f4a7c15u + keep + 1;
    note({kCompressed, launch.first, raw(launch.members[c.entry].call), c.begin, c.end, hash});
  }
  for (const CellAgeing& ageing : launch.ageings) {
    note({kAged, launch.first, raw(ageing.source), raw(ageing.target), ageing.position, ageing.count});
  }
  for (const Adoption& adoption : launch.adoptions) {
    note({kAdopted, launch.first, raw(adoption.call), digest_of(adoption.pages)});
  }
}

uint64_t Core::State::digest_of(std::span<const PageId> pages) {
  uint64_t hash = pages.size();
  for (const PageId page : pages) hash = hash * 0x9e3779b97f4a7c15u + raw(page) + 1;
  return hash;
}

uint32_t Core::State::padded(uint32_t tokens) const {
  const auto size = std::lower_bound(config.capture_sizes.begin(), config.capture_sizes.end(), tokens);
  return size == config.capture_sizes.end() ? tokens : *size;
}

}  // namespace kvtwin
