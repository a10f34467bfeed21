// Calls that keep only part of their KV: what a step needs, what a compression leaves, what comes back.

#include <algorithm>
#include <bit>

#include "engine/base/check.h"
#include "engine/base/planted.h"
#include "engine/policy/core_state.h"

namespace kvtwin {

// --- how much there is

// Cells that the call holds once `tokens` tokens are computed; a cell is one token in one head group.
uint64_t Core::State::cells_of(const CallState& call, uint32_t tokens) const {
  return retention.by_group() ? call.tables.cells(tokens) : uint64_t{tokens} - call.dead;
}

HeldCells Core::State::held_by(const Launch& launch) const {
  HeldCells held;
  const uint32_t groups = retention.by_group() ? retention.shape().groups : 1;
  for (size_t i = 0; i < launch.members.size(); ++i) {
    const CallState& call = calls[launch.members[i].slot];
    if (dual) {  // nothing is dropped; what waits for its group has a slot in staging
      held.cells += call.kv;
      held.slots += uint64_t{call.cells.pages()} * config.page_tokens + call.cells.waiting.size();
      ++held.growing;
      continue;
    }
    held.full += uint64_t{groups} * call.kv;
    held.cells += cells_of(call, call.kv);
    held.slots += uint64_t{table_pages(call)} * config.page_tokens;
    held.growing += launch.entries[i].grows ? groups : 0;
    held.growing_full += groups;
  }
  return held;
}

// --- what a step takes

void Core::State::cells_after(const CallState& call, uint32_t tokens, std::vector<uint32_t>* cells) const {
  cells->clear();
  for (uint32_t g = 0; g < call.tables.groups(); ++g) {
    const uint32_t kept = retention.cells_after(g, tokens);
    cells->push_back(retention.staged() ? kept : std::min(kept, call.tables.cells(g, tokens)));
  }
}

// As grow(), where pages belong to head groups.
bool Core::State::grow_groups(CallState* call, uint32_t tokens) {
  GroupTables& tables = call->tables;
  wanted.clear();
  if (retention.staged() && call->kv < call->fill) {
    cells_after(*call, call->kv + tokens, &after);
    tables.wanted(after, &wanted);
  } else {
    tables.wanted(call->kv, call->kv + tokens, &wanted);
  }
  const auto more = static_cast<uint32_t>(wanted.size());
  if (more > pages_available(*call)) return false;
  stop_borrowing(call);
  for (uint32_t i = 0; i < more; ++i) {
    const PageId page = take_page(more - i);
    tables.give(wanted[i], page);
    granted.push_back({page, wanted[i]});
  }
  tables.settle();
  note_taken(call, more);
  return true;
}

// Pages that must be there, besides the cached ones, for the call to be let in; `tokens`: its first entry.
uint64_t Core::State::pages_to_admit(const CallState& call, uint32_t cached, uint32_t tokens) const {
  const bool all = config.admission == AdmissionKind::kFullReservation;
  uint32_t covered = cached + tokens;
  if (config.admission == AdmissionKind::kFullPrompt) covered = call.known();
  if (all) covered = call.prompt + call.output;
  if (!retention.by_group()) {
    return div_ceil(covered, config.page_tokens) - cached / config.page_tokens;
  }
  if (!retention.staged()) return retention.pages_raw(covered);
  if (!retention.reserves() && !all) return retention.pages_kept(covered, 0);
  // METHODS 2.5: exactly what will be kept of the prompt, and the output behind it as far as asked for.
  const uint32_t left = call.prompt + call.output - call.known();
  const uint32_t reserve = config.policies.budget_spec.decode_reserve;
  return retention.pages_kept(call.known(), all ? left : std::min(left, reserve));
}

// --- compressions

// Cells of the longest group. What a drop leaves counts from the step on that asks for it: when the next drop
// is due must not depend on how many steps are in flight.
uint32_t Core::State::longest(const CallState& call) const {
  if (retention.by_group()) return call.tables.longest(call.kv);
  return call.kv - (call.answers > 0 ? std::max(call.dead, call.dead_soon) : call.dead);
}

// Whether the entry that brought the call from `context` to call.kv tokens ends with one; or begins with one.
bool Core::State::compresses(const CallState& call, uint32_t context) const {
  if (retention.keeping() == Keeping::kRing) return false;
  if (retention.at_turn_start()) {
    return call.admitted_now && retention.can_drop(context, cells_of(call, context));
  }
  const uint32_t tokens = call.kv;
  if (retention.by_chunk()) {
    return context < call.fill && (retention.staged() || retention.ranked(tokens) > 0);
  }
  if (call.due && tokens >= call.fill) {
    return retention.at_prompt_end() && retention.can_drop(tokens, cells_of(call, tokens));
  }
  if (call.due || !retention.at_decode()) return false;
  return longest(call) >= retention.decode_limit(tokens);
}

void Core::State::compress(CallState* call, uint32_t entry, Launch* launch) {
  const bool before = retention.at_turn_start();
  const bool ranks_context = before && !KVT_PLANTED(turn_ranked);
  const uint32_t tokens = ranks_context ? launch->entries[entry].context : call->kv,
                 sinks = retention.sinks(), window = retention.window();
  const uint32_t ranked_before = retention.by_chunk() ? retention.ranked(call->ranked) : 0;
  Compression c;
  c.entry = entry;
  c.begin = ranked_before > 0 ? call->ranked - window : 0;
  c.end = tokens;
  c.staged = retention.staged();
  c.before = before;
  const uint32_t sinks_end = std::min(sinks, tokens);
  const uint32_t window_begin = std::max({tokens - std::min(window, tokens), c.begin, sinks_end});
  const size_t forced_before = launch->forced.size(), keep_before = launch->keep.size();
  if (c.begin < sinks_end) launch->forced.push_back({c.begin, sinks_end});
  if (window_begin < tokens) launch->forced.push_back({window_begin, tokens});
  if (retention.known()) {
    const uint32_t groups = retention.by_group() ? call->tables.groups() : 1;
    for (uint32_t g = 0; g < groups; ++g) {
      const uint32_t locked = retention.by_chunk() ? retention.quota(g, ranked_before) : 0;
      launch->keep.push_back(retention.quota(g, retention.ranked(tokens)) - locked);
    }
  }
  // Lists that grow may move: launch_planned() puts the spans in place.
  c.forced = {launch->forced.data(), launch->forced.size() - forced_before};
  c.keep = {launch->keep.data(), launch->keep.size() - keep_before};
  launch->compressions.push_back(c);
  launch->attempts.push_back(call->attempt);
  call->ranked = tokens;
  if (!retention.known() || retention.keeping() == Keeping::kHoles) {
    if (retention.keeping() == Keeping::kHoles)
      call->dead_soon = tokens - std::min(longest(*call), retention.cells_after(0, tokens));
    ++call->answers;
    launch->decisive = true;
    if (snapshots) plan_snapshot(call, entry, launch);
    return;
  }
  if (arena) return drop_before_arena(call);
  cells_after(*call, tokens, &after);
  keep_cells(call, tokens, after);
  if (snapshots) plan_snapshot(call, entry, launch);
}

// Each group holds `cells` of its cells from now on.
void Core::State::keep_cells(CallState* call, uint32_t tokens, std::span<const uint32_t> cells) {
  cells_held -= call->tables.cells(tokens);
  call->tables.keep(tokens, cells);
  cells_held += call->tables.cells(tokens);
  spare_pages.clear();
  call->tables.trim(tokens, &spare_pages);
  pages_running -= spare_pages.size();
  for (const PageId page : spare_pages) give_page(page);
  if (config.admission != AdmissionKind::kFullReservation || retention.staged()) return;
  // What was set aside for the whole prompt is more than what is left of it can come to need.
  const uint32_t left = call->prompt + call->output - tokens;
  uint64_t most = 0;
  for (uint32_t g = 0; g < call->tables.groups(); ++g) {
    most += div_ceil<uint64_t>(uint64_t{cells[g]} + left, config.page_tokens);
  }
  reserved_total -= call->reserved;
  call->reserved = static_cast<uint32_t>(most - call->tables.pages());
  call->beyond = 0;
  reserved_total += call->reserved;
}

// --- quiet stretches

// Steps from this one on in which the call is certainly not compressed, and reads one cell more in each, or
// none.
uint32_t Core::State::quiet_steps_left(const CallState& call) const {
  if (retention.keeping() == Keeping::kRing) return retention.steps_until_full(call.kv - 1);
  if (!retention.at_decode()) return UINT32_MAX;
  const uint32_t limit = retention.decode_limit(call.kv), cells = longest(call);
  return cells >= limit ? 1 : limit - cells;
}

// As grant_ahead(): step by step, and in each the groups that cross, in the order in which a step on its own
// would take them.
uint32_t Core::State::grant_ahead_groups(uint32_t steps, Launch* launch) {
  for (uint32_t offset = 1; offset < steps; ++offset) {
    for (uint32_t entry = 0; entry < launch->members.size(); ++entry) {
      CallState& call = calls[launch->members[entry].slot];
      for (const uint32_t group : call.tables.crossing(call.kv + offset - 1)) {
        if (call.tables.ring_full(group)) continue;
        if (!free_page_is_next()) {
          give_back_grants(launch, offset);
          return offset;
        }
        const PageId taken = gpu.acquire();
        call.tables.give(group, taken);
        note_taken(&call, 1);
        launch->grants.push_back({offset, entry, taken, group});
      }
    }
  }
  return steps;
}

// --- answers

// An answer that cannot be (from a log that somebody changed) counts as the nearest that can.
void Core::State::apply_kept(const StepDone& event, const Launch& launch) {
  for (size_t i = 0; i < launch.compressions.size(); ++i) {
    const Compression& compression = launch.compressions[i];
    const Launch::Member& member = launch.members[compression.entry];
    CallState& call = calls[member.slot];
    // Preempted meanwhile: it starts again, and what was kept is gone.
    const bool gone = call.phase != CallState::Phase::kRunning || call.attempt != launch.attempts[i];
    const bool holes = retention.keeping() == Keeping::kHoles;
    if (retention.known() && !holes) continue;
    const auto snapshot = std::find_if(launch.snapshots.begin(), launch.snapshots.end(),
                                       [&](const Snapshot& s) { return s.entry == compression.entry; });
    if (gone) {
      if (snapshot != launch.snapshots.end()) snapshots->give_back(SnapshotId{snapshot->snapshot});
      continue;
    }
    --call.answers;
    const CellsKept kept = i < event.kept.size() ? event.kept[i] : CellsKept{};
    if (holes) {
      apply_holes(&call, compression, kept);
      continue;
    }
    after.clear();
    uint64_t hash = 0;
    for (uint32_t g = 0; g < call.tables.groups(); ++g) {
      const uint32_t had = call.tables.cells(g, call.kv);
      const uint32_t least = call.tables.shared(g) * config.page_tokens;  // never ranked again
      after.push_back(g < kept.counts.size() ? std::clamp(kept.counts[g], least, had) : had);
      hash = hash * 0x9e3779b97f4a7c15u + after.back() + 1;
    }
    note({kKept, launch.first, raw(call.id), hash});
    keep_cells(&call, call.kv, after);
    if (snapshot != launch.snapshots.end()) take_snapshot(&call, SnapshotId{snapshot->snapshot});
  }
}

// Positions of which nothing is left: pages that hold no others go.
void Core::State::apply_holes(CallState* call, const Compression& compression, const CellsKept& kept) {
  const uint32_t page = config.page_tokens, end = compression.end;
  KVT_CHECK(compression.begin == 0);
  call->page_dead.resize(div_ceil(end, page), 0);
  uint64_t hash = 0;
  for (uint32_t position = 0; position * page < end; ++position) {
    const uint32_t first = position * page, last = std::min(first + page, end);
    uint32_t dead = 0;
    for (uint32_t p = first; p < last; ++p) {
      const bool alive = p / 64 >= kept.live.size() || ((kept.live[p / 64] >> (p % 64)) & 1) != 0;
      dead += alive ? 0 : 1;
    }
    const uint32_t before = call->page_dead[position];
    if (dead <= before) continue;  // what was dropped never comes back
    hash = hash * 0x9e3779b97f4a7c15u + (uint64_t{position} << 16) + dead;
    call->page_dead[position] = static_cast<uint16_t>(dead);
    call->dead += dead - before;
    cells_held -= dead - before;
    if (position < call->lease.pages && index.sole(call->lease, position)) {
      index.mark_dead(call->lease, position, dead - before);
    }
    if (dead == page || (KVT_PLANTED(early_hole) && dead + 1 >= page)) drop_page(call, position);
  }
  note({kKept, done, raw(call->id), hash});
}

// The page at this position goes, unless somebody else may still read it (METHODS 3.7).
void Core::State::drop_page(CallState* call, uint32_t position) {
  PageId page = kNoPage;
  if (position < call->lease.pages) {
    page = index.take_dead_page(call->lease, position);
  } else {
    std::swap(page, call->pages[position - call->lease.pages]);
  }
  if (page == kNoPage) return;
  ++call->holes;
  --pages_running;
  give_page(page);
}

// What earlier calls have dropped of the prefix that this one starts with.
void Core::State::adopt_holes(CallState* call) {
  call->holes = index.holes(call->lease);
  index.dead_cells(call->lease, &call->page_dead);
  call->dead = 0;
  for (const uint16_t dead : call->page_dead) call->dead += dead;
}

}  // namespace kvtwin
