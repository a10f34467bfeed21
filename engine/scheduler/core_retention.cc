// Core: requests that retain part of their KV. Demand of a step, compressions, and the backend's reports.

#include <algorithm>
#include <bit>

#include "engine/base/check.h"
#include "engine/base/planted.h"
#include "engine/scheduler/core_state.h"

namespace kvtwin {

// --- counts

// KV entries that the request holds once `tokens` tokens are computed. A KV entry is one token in one head
// group.
uint64_t Core::State::kv_entries_of(const RequestState& request, uint32_t tokens) const {
  return retention.by_group() ? request.tables.kv_entries(tokens) : uint64_t{tokens} - request.dropped_tokens;
}

HeldEntries Core::State::held_by(const Launch& launch) const {
  HeldEntries held;
  const uint32_t groups = retention.by_group() ? retention.shape().groups : 1;
  for (size_t i = 0; i < launch.members.size(); ++i) {
    const RequestState& request = requests[launch.members[i].request_index];
    if (mixed) {  // nothing is dropped; KV entries that wait for a full group have slots in staging
      held.kv_entries += request.kv;
      held.slots +=
          uint64_t{request.kv_entries.pages()} * config.page_tokens + request.kv_entries.waiting.size();
      ++held.growing;
      continue;
    }
    held.full += uint64_t{groups} * request.kv;
    held.kv_entries += kv_entries_of(request, request.kv);
    held.slots += uint64_t{table_pages(request)} * config.page_tokens;
    held.growing += launch.entries[i].grows ? groups : 0;
    held.growing_full += groups;
  }
  return held;
}

// --- demand of a step

void Core::State::entries_after(const RequestState& request, uint32_t tokens,
                                std::vector<uint32_t>* kv_entries) const {
  kv_entries->clear();
  for (uint32_t g = 0; g < request.tables.groups(); ++g) {
    const uint32_t retained = retention.entries_after(g, tokens);
    kv_entries->push_back(retention.staged() ? retained
                                             : std::min(retained, request.tables.kv_entries(g, tokens)));
  }
}

// grow() for pages that belong to head groups.
bool Core::State::grow_groups(RequestState* request, uint32_t tokens) {
  GroupTables& tables = request->tables;
  wanted.clear();
  if (retention.staged() && request->kv < request->fill) {
    entries_after(*request, request->kv + tokens, &after);
    tables.wanted(after, &wanted);
  } else {
    tables.wanted(request->kv, request->kv + tokens, &wanted);
  }
  const auto more = static_cast<uint32_t>(wanted.size());
  if (more > pages_available(*request)) return false;
  stop_borrowing(request);
  for (uint32_t i = 0; i < more; ++i) {
    const PageId page = take_page(more - i);
    tables.give(wanted[i], page);
    allocated.push_back({page, wanted[i]});
  }
  tables.settle();
  note_taken(request, more);
  return true;
}

// Pages that must be available, besides the cached ones, to admit the request. `tokens`: its first entry.
uint64_t Core::State::pages_to_admit(const RequestState& request, uint32_t cached, uint32_t tokens) const {
  const bool all = config.admission == AdmissionKind::kFullReservation;
  uint32_t covered = cached + tokens;
  if (config.admission == AdmissionKind::kFullPrompt) covered = request.known();
  if (all) covered = request.prompt + request.output;
  if (!retention.by_group()) {
    return div_ceil(covered, config.page_tokens) - cached / config.page_tokens;
  }
  if (!retention.staged()) return retention.pages_raw(covered);
  if (!retention.reserves() && !all) return retention.pages_retained(covered, 0);
  // docs/design/methods/tangram.md#reservation: exactly the retained KV entries of the prompt, and the output
  // as far as decode_reserve covers it.
  const uint32_t left = request.prompt + request.output - request.known();
  const uint32_t reserve = config.policies.budget_spec.decode_reserve;
  return retention.pages_retained(request.known(), all ? left : std::min(left, reserve));
}

// --- compressions

// KV entries of the longest group. A drop counts from the step that requests it: the time of the next drop
// must not depend on the number of steps in flight.
uint32_t Core::State::longest(const RequestState& request) const {
  if (retention.by_group()) return request.tables.longest(request.kv);
  return request.kv - (request.answers > 0 ? std::max(request.dropped_tokens, request.dropped_soon)
                                           : request.dropped_tokens);
}

// Whether the entry that brought the request from `context` to request.kv tokens ends, or begins, with a
// compression.
bool Core::State::compresses(const RequestState& request, uint32_t context) const {
  if (retention.slot_retention() == SlotRetention::kRing) return false;
  if (retention.at_turn_start()) {
    return request.admitted_now && retention.can_drop(context, kv_entries_of(request, context));
  }
  const uint32_t tokens = request.kv;
  if (retention.by_chunk()) {
    return context < request.fill && (retention.staged() || retention.ranked(tokens) > 0);
  }
  if (request.due && tokens >= request.fill) {
    return retention.at_prompt_end() && retention.can_drop(tokens, kv_entries_of(request, tokens));
  }
  if (request.due || !retention.at_decode()) return false;
  return longest(request) >= retention.decode_limit(tokens);
}

void Core::State::compress(RequestState* request, uint32_t entry, Launch* launch) {
  const bool before = retention.at_turn_start();
  const bool ranks_context = before && !KVT_PLANTED(turn_ranked);
  const uint32_t tokens = ranks_context ? launch->entries[entry].context : request->kv,
                 sinks = retention.sinks(), window = retention.window();
  const uint32_t ranked_before = retention.by_chunk() ? retention.ranked(request->ranked) : 0;
  Compression c;
  c.entry = entry;
  c.begin = ranked_before > 0 ? request->ranked - window : 0;
  c.end = tokens;
  c.staged = retention.staged();
  c.before = before;
  const uint32_t sinks_end = std::min(sinks, tokens);
  const uint32_t window_begin = std::max({tokens - std::min(window, tokens), c.begin, sinks_end});
  const size_t forced_before = launch->forced.size(), keep_before = launch->keep.size();
  if (c.begin < sinks_end) launch->forced.push_back({c.begin, sinks_end});
  if (window_begin < tokens) launch->forced.push_back({window_begin, tokens});
  if (retention.known()) {
    const uint32_t groups = retention.by_group() ? request->tables.groups() : 1;
    for (uint32_t g = 0; g < groups; ++g) {
      const uint32_t locked = retention.by_chunk() ? retention.quota(g, ranked_before) : 0;
      launch->keep.push_back(retention.quota(g, retention.ranked(tokens)) - locked);
    }
  }
  // The vectors may still move: launch_planned() sets the spans.
  c.forced = {launch->forced.data(), launch->forced.size() - forced_before};
  c.keep = {launch->keep.data(), launch->keep.size() - keep_before};
  launch->compressions.push_back(c);
  launch->attempts.push_back(request->attempt);
  request->ranked = tokens;
  if (!retention.known() || retention.slot_retention() == SlotRetention::kInPlace) {
    if (retention.slot_retention() == SlotRetention::kInPlace)
      request->dropped_soon = tokens - std::min(longest(*request), retention.entries_after(0, tokens));
    ++request->answers;
    launch->decisive = true;
    if (prefix_checkpoints) plan_prefix_checkpoint(request, entry, launch);
    return;
  }
  if (resident) return drop_before_resident(request);
  entries_after(*request, tokens, &after);
  retain_entries(request, tokens, after);
  if (prefix_checkpoints) plan_prefix_checkpoint(request, entry, launch);
}

// Each group now holds `kv_entries` of its KV entries.
void Core::State::retain_entries(RequestState* request, uint32_t tokens,
                                 std::span<const uint32_t> kv_entries) {
  entries_held -= request->tables.kv_entries(tokens);
  request->tables.keep(tokens, kv_entries);
  entries_held += request->tables.kv_entries(tokens);
  spare_pages.clear();
  request->tables.trim(tokens, &spare_pages);
  pages_running -= spare_pages.size();
  for (const PageId page : spare_pages) free_page(page);
  if (config.admission != AdmissionKind::kFullReservation || retention.staged()) return;
  // The reservation for the whole prompt exceeds the largest future demand of the retained part.
  const uint32_t left = request->prompt + request->output - tokens;
  uint64_t most = 0;
  for (uint32_t g = 0; g < request->tables.groups(); ++g) {
    most += div_ceil<uint64_t>(uint64_t{kv_entries[g]} + left, config.page_tokens);
  }
  reserved_total -= request->reserved;
  request->reserved = static_cast<uint32_t>(most - request->tables.pages());
  request->beyond = 0;
  reserved_total += request->reserved;
}

// --- coalesced steps

// Number of steps from this one on in which the request is certainly not compressed, and which each add one
// KV entry, or none.
uint32_t Core::State::coalescible_steps_left(const RequestState& request) const {
  if (retention.slot_retention() == SlotRetention::kRing) return retention.steps_until_full(request.kv - 1);
  if (!retention.at_decode()) return UINT32_MAX;
  const uint32_t limit = retention.decode_limit(request.kv), kv_entries = longest(request);
  return kv_entries >= limit ? 1 : limit - kv_entries;
}

// allocate_ahead() for head groups: step by step, and in each step the groups that need a page, in the order
// in which a single step would take them.
uint32_t Core::State::allocate_ahead_groups(uint32_t steps, Launch* launch) {
  for (uint32_t offset = 1; offset < steps; ++offset) {
    for (uint32_t entry = 0; entry < launch->members.size(); ++entry) {
      RequestState& request = requests[launch->members[entry].request_index];
      for (const uint32_t group : request.tables.crossing(request.kv + offset - 1)) {
        if (request.tables.ring_full(group)) continue;
        if (!free_page_is_next()) {
          roll_back_allocations(launch, offset);
          return offset;
        }
        const PageId taken = gpu.acquire();
        request.tables.give(group, taken);
        note_taken(&request, 1);
        launch->allocations.push_back({offset, entry, taken, group});
      }
    }
  }
  return steps;
}

// --- reports of the backend

// An impossible report (from a modified log) is replaced by the nearest possible one.
void Core::State::apply_retained(const StepDone& event, const Launch& launch) {
  for (size_t i = 0; i < launch.compressions.size(); ++i) {
    const Compression& compression = launch.compressions[i];
    const Launch::Member& member = launch.members[compression.entry];
    RequestState& request = requests[member.request_index];
    // Preempted meanwhile: it starts again, and its retained KV entries are lost.
    const bool dropped =
        request.phase != RequestState::Phase::kRunning || request.attempt != launch.attempts[i];
    const bool dropped_slots = retention.slot_retention() == SlotRetention::kInPlace;
    if (retention.known() && !dropped_slots) continue;
    const auto prefix_checkpoint =
        std::find_if(launch.prefix_checkpoints.begin(), launch.prefix_checkpoints.end(),
                     [&](const PrefixCheckpoint& s) { return s.entry == compression.entry; });
    if (dropped) {
      if (prefix_checkpoint != launch.prefix_checkpoints.end())
        prefix_checkpoints->roll_back(PrefixCheckpointId{prefix_checkpoint->prefix_checkpoint});
      continue;
    }
    --request.answers;
    const CompressionOutcome retained = i < event.retained.size() ? event.retained[i] : CompressionOutcome{};
    if (dropped_slots) {
      apply_dropped_slots(&request, compression, retained);
      continue;
    }
    after.clear();
    uint64_t hash = 0;
    for (uint32_t g = 0; g < request.tables.groups(); ++g) {
      const uint32_t had = request.tables.kv_entries(g, request.kv);
      const uint32_t least = request.tables.shared(g) * config.page_tokens;  // never ranked again
      after.push_back(g < retained.counts.size() ? std::clamp(retained.counts[g], least, had) : had);
      hash = chained(hash, after.back());
    }
    digest.add(kRetained, launch.first, raw(request.id), hash);
    retain_entries(&request, request.kv, after);
    if (prefix_checkpoint != launch.prefix_checkpoints.end())
      take_prefix_checkpoint(&request, PrefixCheckpointId{prefix_checkpoint->prefix_checkpoint});
  }
}

// Positions without retained KV entries: pages without any others are freed.
void Core::State::apply_dropped_slots(RequestState* request, const Compression& compression,
                                      const CompressionOutcome& retained) {
  const uint32_t page = config.page_tokens, end = compression.end;
  KVT_CHECK(compression.begin == 0);
  request->page_dropped.resize(div_ceil(end, page), 0);
  uint64_t hash = 0;
  for (uint32_t position = 0; position * page < end; ++position) {
    const uint32_t first = position * page, last = std::min(first + page, end);
    uint32_t dropped_tokens = 0;
    for (uint32_t p = first; p < last; ++p) {
      const bool alive = p / 64 >= retained.live.size() || ((retained.live[p / 64] >> (p % 64)) & 1) != 0;
      dropped_tokens += alive ? 0 : 1;
    }
    const uint32_t before = request->page_dropped[position];
    if (dropped_tokens <= before) continue;  // a dropped token never becomes live again
    hash = chained(hash, position, dropped_tokens);
    request->page_dropped[position] = static_cast<uint16_t>(dropped_tokens);
    request->dropped_tokens += dropped_tokens - before;
    entries_held -= dropped_tokens - before;
    if (position < request->pin.pages && index.sole(request->pin, position)) {
      index.mark_dropped(request->pin, position, dropped_tokens - before);
    }
    if (dropped_tokens == page || (KVT_PLANTED(early_drop) && dropped_tokens + 1 >= page))
      drop_page(request, position);
  }
  digest.add(kRetained, done, raw(request->id), hash);
}

// Frees the page at this position, unless another request may still read it
// (docs/design/methods/intentkv.md#freeing).
void Core::State::drop_page(RequestState* request, uint32_t position) {
  PageId page = kNoPage;
  if (position < request->pin.pages) {
    page = index.take_dropped_page(request->pin, position);
  } else {
    std::swap(page, request->pages[position - request->pin.pages]);
  }
  if (page == kNoPage) return;
  ++request->dropped_slots;
  --pages_running;
  free_page(page);
}

// Takes over what earlier requests have dropped of the prefix that this request reuses.
void Core::State::reuse_dropped_slots(RequestState* request) {
  request->dropped_slots = index.dropped_slots(request->pin);
  index.dropped_entries(request->pin, &request->page_dropped);
  request->dropped_tokens = 0;
  for (const uint16_t dropped_tokens : request->page_dropped) request->dropped_tokens += dropped_tokens;
}

}  // namespace kvtwin
