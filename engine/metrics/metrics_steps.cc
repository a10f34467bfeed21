// Metrics: launches, pages allocated ahead, ends of steps.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/metrics/metrics_state.h"

namespace kvtwin {

// Drops launches whose steps all precede `step`.
void Metrics::drop_launches(Engine& engine, uint64_t step) {
  while (!engine.launches.empty() && engine.launches.front().step + engine.launches.front().repeat <= step) {
    engine.spare.push_back(std::move(engine.launches.front()));
    engine.launches.pop_front();
  }
}

void Metrics::step_done(const StepDone& done) {
  KVT_CHECK(!done.ends.empty());
  Engine& engine = engines_[raw(done.engine)];
  EngineTotals& totals = engine.totals;
  totals.host = totals.host + done.outcome.host;
  engine.step_exposed = engine.step_exposed + done.outcome.exposed;
  totals.exposed = totals.exposed + done.outcome.exposed;
  totals.hidden = totals.hidden + done.outcome.hidden;
  totals.bytes_in += done.outcome.bytes_in;
  totals.bytes_out += done.outcome.bytes_out;
  Instant begun = kNever;  // start of the first of these steps
  for (const RequestId request : engine.inbox) {
    if (requests_[raw(request)].queued == kNever) requests_[raw(request)].queued = done.ends.front();
  }
  engine.inbox.clear();

  const uint32_t page_tokens = facts_[raw(done.engine)].page_tokens;
  for (size_t i = 0; i < done.ends.size();) {
    const uint64_t step = raw(done.step) + i;
    drop_launches(engine, step);
    KVT_CHECK(!engine.launches.empty());
    Launch& launch = engine.launches.front();
    KVT_CHECK(step >= launch.step);
    const uint64_t offset = step - launch.step;
    const size_t count =
        static_cast<size_t>(std::min<uint64_t>(done.ends.size() - i, launch.repeat - offset));
    Integral entries_ns = 0, slots_ns = 0, full_ns = 0;
    const Instant from = engine.any_step_ended ? std::max(launch.at, engine.last_end) : launch.at;
    begun = std::min(begun, from);
    steps_.add(from, done.ends[i + count - 1], 1);
    for (size_t k = 0; k < count; ++k) {
      const Instant end = done.ends[i + k];
      const Duration span = end - std::max(launch.at, engine.any_step_ended ? engine.last_end : launch.at);
      if (engine.any_step_ended) itl_.add(end - engine.last_end, launch.decodes);
      totals.busy = totals.busy + span;
      entries_ns +=
          Integral{launch.kv_entries + (offset + k) * launch.growing} * static_cast<uint64_t>(span.ns);
      full_ns += Integral{launch.full + (offset + k) * launch.growing_full} * static_cast<uint64_t>(span.ns);
      add_reads(static_cast<uint32_t>(offset + k), &launch, &totals);
      slots_ns +=
          Integral{launch.slots + launch.slots_reached * page_tokens} * static_cast<uint64_t>(span.ns);
      engine.last_end = end;
      engine.any_step_ended = true;
      while (launch.slots_reached < launch.slot_offsets.size() &&
             launch.slot_offsets[launch.slots_reached] == offset + k + 1) {
        ++launch.slots_reached;
      }
      begin_allocations(engine, step + k + 1, end);
      // At the last end the Core decides again and may free pages; saw_gauges() follows at that instant.
      if (i + k + 1 < done.ends.size()) note_peaks(engine);
    }
    totals.entries_ns += entries_ns;
    totals.slots_ns += slots_ns;
    totals.full_ns += full_ns;
    totals.steps += count;
    totals.request_steps += count * launch.entries;
    for (const PlanEntry& entry : launch.chunks) chunk_done(engine, StepId{step}, done.ends[i], entry);
    for (const RequestId request : launch.arrived) first_decoded(done.ends[i], request);
    i += count;
  }
  hidden_.spread(begun, done.ends.back(), static_cast<uint64_t>(done.outcome.hidden.ns));
  exposed_.spread(begun, done.ends.back(), static_cast<uint64_t>(done.outcome.exposed.ns));
  in_.spread(begun, done.ends.back(), done.outcome.bytes_in);
  out_.spread(begun, done.ends.back(), done.outcome.bytes_out);
  const uint64_t next = raw(done.step) + done.ends.size();
  drop_launches(engine, next);
  engine.step_running = !engine.launches.empty();
}

void Metrics::chunk_done(Engine& engine, StepId step, Instant end, const PlanEntry& entry) {
  const uint32_t request_index = live_of_[raw(entry.request)];
  if (request_index == kNone) return;  // ended while the step ran
  Live& live = live_[request_index];
  if (live.phase == Live::Phase::kQueue || live.admitted_step > step) return;  // preempted meanwhile
  RequestRecord& request = requests_[raw(entry.request)];
  mark(request, live, engine, end,
       entry.context < live.recompute_until ? TimeCategory::kRecompute : TimeCategory::kPrefill);
  const uint32_t reached = entry.context + entry.tokens;
  if (entry.context < live.recompute_until) {
    request.recomputed_tokens += std::min(reached, live.recompute_until) - entry.context;
  }
  live.computed = std::max(live.computed, reached);
  if (!entry.samples) return;
  live.phase = Live::Phase::kDecode;
  if (live.last_token != kNever) itl_.add(end - live.last_token, 1);
  live.last_token = kNever;
}

// The first token of the decoding engine: its distance from the token before spans both engines.
void Metrics::first_decoded(Instant end, RequestId request) {
  const uint32_t request_index = live_of_[raw(request)];
  if (request_index == kNone || live_[request_index].last_token == kNever) return;
  itl_.add(end - live_[request_index].last_token, 1);
  live_[request_index].last_token = kNever;
}

void Metrics::add_decode(const PlanEntry& entry, Launch* launch) {
  launch->longest_raw = std::max(launch->longest_raw, entry.context);
  if (entry.live() >= launch->longest_effective) launch->longest_grows = entry.grows ? 1 : 0;
  launch->longest_effective = std::max(launch->longest_effective, entry.live());
  launch->raw += entry.context;
  launch->effective += entry.live();
  launch->grown += entry.grows ? 1 : 0;
}

// Adds the reads of the decodes of single step `offset` of `launch`.
void Metrics::add_reads(uint32_t offset, Launch* launch, EngineTotals* totals) {
  if (launch->decodes == 0) return;
  totals->reads_raw += launch->raw;
  totals->reads_effective += launch->effective;
  launch->raw += launch->decodes;
  launch->effective += launch->grown;
  totals->peak_raw = std::max(totals->peak_raw, launch->longest_raw + offset);
  totals->peak_effective =
      std::max(totals->peak_effective, launch->longest_effective + offset * launch->longest_grows);
}

void Metrics::launched(Instant now, const LaunchStep& step) {
  Engine& engine = engines_[raw(step.engine)];
  for (const Requantisation& ageing : step.requantisations) engine.totals.tokens_requantised += ageing.count;
  // Step numbers of an interrupted launch that never ran are reused by the next launch.
  while (!engine.launches.empty()) {
    Launch& last = engine.launches.back();
    if (last.step + last.repeat <= raw(step.step)) break;
    last.held_offsets.resize(last.allocations_held);
    if (last.step < raw(step.step)) {
      last.repeat = raw(step.step) - last.step;
      break;
    }
    engine.spare.push_back(std::move(last));
    engine.launches.pop_back();
  }
  Launch launch;
  if (!engine.spare.empty()) {
    launch = std::move(engine.spare.back());
    engine.spare.pop_back();
  }
  launch.step = raw(step.step);
  launch.repeat = step.repeat;
  launch.at = now;
  launch.entries = static_cast<uint32_t>(step.entries.size());
  launch.decodes = 0;
  launch.kv_entries = launch.slots = launch.full = launch.raw = launch.effective = 0;
  launch.growing = launch.entries;
  launch.growing_full = 0;
  launch.grown = launch.longest_raw = launch.longest_effective = launch.longest_grows = 0;
  launch.chunks.clear();
  launch.arrived.clear();
  launch.slot_offsets.clear();
  launch.held_offsets.clear();
  launch.slots_reached = launch.allocations_held = 0;
  const uint32_t page_tokens = facts_[raw(step.engine)].page_tokens;
  for (const PlanEntry& entry : step.entries) {
    const uint32_t reached = entry.context + entry.stored();
    launch.kv_entries += reached;
    launch.slots += uint64_t{div_ceil(reached, page_tokens)} * page_tokens;
    if (entry.first) admit(now, step, entry);
    if (entry.kind == EntryKind::kDecode) {
      // A request's first entry is a decode only if another engine has prefilled it.
      entry.first ? launch.arrived.push_back(entry.request) : void(++launch.decodes);
      add_decode(entry, &launch);
    } else if (entry.kind == EntryKind::kChunk) {
      launch.chunks.push_back(entry);
    }
  }
  if (step.held.full > 0 || step.held.slots > 0) {
    launch.kv_entries = step.held.kv_entries;
    launch.slots = step.held.slots;
    launch.full = step.held.full;
    launch.growing = step.held.growing;
    launch.growing_full = step.held.growing_full;
  }
  KVT_CHECK(step.repeat == 1 || launch.chunks.empty());
  const uint32_t pages_gpu = facts_[raw(step.engine)].pages_gpu;
  const auto on_host = [&](const PageAllocation& one) { return pages_gpu > 0 && raw(one.page) >= pages_gpu; };
  // With resident pages, the pages of the context are those that have a host page.
  const bool resident = std::any_of(step.allocations.begin(), step.allocations.end(), on_host);
  for (const PageAllocation& allocation : step.allocations) {
    if (allocation.offset == 0) continue;
    if (on_host(allocation) == resident) launch.slot_offsets.push_back(allocation.offset);
    if (!on_host(allocation)) launch.held_offsets.push_back(allocation.offset);
  }
  engine.launches.push_back(std::move(launch));
  engine.step_running = true;
  begin_allocations(engine, engine.steps_ended, now);
}

// A coalesced launch gets all its pages at once. Each page counts from the instant at which its step would
// have been launched alone: when the step steps_in_flight_max places before it ended.
void Metrics::begin_allocations(Engine& engine, uint64_t steps_ended, Instant at) {
  engine.steps_ended = steps_ended;
  const uint64_t launched =
      steps_ended + facts_[static_cast<size_t>(&engine - engines_.data())].steps_in_flight_max;
  for (Launch& launch : engine.launches) {
    while (launch.allocations_held < launch.held_offsets.size() &&
           launch.step + launch.held_offsets[launch.allocations_held] < launched) {
      pages_until(engine, at);
      ++launch.allocations_held;
      ++engine.pages_held;
    }
  }
}

void Metrics::admit(Instant now, const LaunchStep& step, const PlanEntry& entry) {
  const Engine& engine = engines_[raw(step.engine)];
  RequestRecord& request = requests_[raw(entry.request)];
  Live& live = live_[live_of_[raw(entry.request)]];
  if (entry.kind == EntryKind::kDecode) {
    mark(request, live, engine, now, TimeCategory::kQueue);
    live.phase = Live::Phase::kDecode;
    live.admitted_step = step.step;
    return;
  }
  const Duration recalled = recall_wait(engine, step, entry.request, live.mark);
  Duration& queue = request.fraction(TimeCategory::kQueue);
  mark(request, live, engine, now, TimeCategory::kQueue);
  queue.ns -= recalled.ns;
  request.fraction(TimeCategory::kTransfer).ns += recalled.ns;
  live.phase = Live::Phase::kPrefill;
  live.admitted_step = step.step;
  if (live.admitted_before) {
    request.reused_again_tokens += entry.context;
  } else {
    request.admitted = now;
    request.reused_tokens = entry.context;
    request.reused_live = entry.live();
    if (request.queued == kNever) request.queued = now;
  }
  live.admitted_before = true;
}

// The part of [from, now) in which the request waited for transfers of pages that it reuses. Pages that were
// loaded for it are the tail of its prefix, so the search runs backwards and stops at the first page that was
// already on the GPU.
Duration Metrics::recall_wait(const Engine& engine, const LaunchStep& step, RequestId request,
                              Instant from) const {
  if (engine.recalls.empty()) return {};
  const auto mine = std::find_if(step.prefix_hits.begin(), step.prefix_hits.end(),
                                 [&](const PrefixHit& one) { return one.request == request; });
  if (mine == step.prefix_hits.end()) return {};
  std::vector<std::pair<Instant, Instant>> waits;
  uint32_t last = 0;
  for (auto page = mine->pages.rbegin(); page != mine->pages.rend(); ++page) {
    const uint32_t number = raw(*page) < engine.recall_of_page.size() ? engine.recall_of_page[raw(*page)] : 0;
    if (number == 0) break;
    if (number == last) continue;
    last = number;
    const Engine::Recall& recall = engine.recalls[number - 1];
    if (recall.done == kNever || recall.done <= from) break;
    waits.emplace_back(std::max(recall.start, from), recall.done);
  }
  // The union of the intervals: transfers of one prefix may overlap or lie apart.
  std::sort(waits.begin(), waits.end());
  Duration sum{};
  Instant covered = from;
  for (const auto& [start, done] : waits) {
    if (done <= covered) continue;
    sum = sum + (done - std::max(start, covered));
    covered = done;
  }
  return sum;
}

}  // namespace kvtwin
