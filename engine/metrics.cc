#include "engine/metrics.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "engine/base/check.h"

namespace kvtwin {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

template <typename T>
T& at_grown(std::vector<T>& items, size_t index) {
  if (index >= items.size()) items.resize(index + 1);
  return items[index];
}

}  // namespace

// What is needed of a call only until it ends.
struct Metrics::Live {
  enum class Phase : uint8_t { kQueue, kPrefill, kDecode };
  Phase phase = Phase::kQueue;
  bool admitted_before = false;
  uint32_t computed = 0;                 // highest context + tokens of its chunks so far
  uint32_t recompute_until = 0;          // chunks below this position repeat lost work
  StepId admitted_step{};                // entries of earlier steps belong to an admission that was undone
  Instant mark{};                        // everything before has been attributed
  Duration host_mark{}, exposed_mark{};  // the engine's totals at `mark`
  Instant last_token = kNever;           // of a preempted call
};

// The part of a LaunchStep that is needed when it is answered.
struct Metrics::Launch {
  uint64_t step = 0;
  uint64_t repeat = 0;
  Instant at{};
  uint32_t entries = 0;
  uint32_t decodes = 0;
  uint64_t cells = 0, slots = 0;           // after its first step
  uint64_t full = 0;                       // likewise, had nothing been dropped; 0: nothing ever is
  uint64_t growing = 0, growing_full = 0;  // what each further step adds
  uint64_t raw = 0, effective = 0;         // reads of the next step's decodes
  uint32_t grown = 0;                      // of these, entries that read one more cell in each further step
  std::vector<PlanEntry> chunks;           // none if repeat > 1
  // Pages that are set aside for later steps: offsets, ascending, > 0. An arena grows apart from the context.
  std::vector<uint32_t> slot_offsets;  // pages of context
  std::vector<uint32_t> held_offsets;  // pages of the gpu
  size_t slots_reached = 0;            // of slot_offsets: their step has begun
  size_t grants_held = 0;  // of held_offsets: their step would have been launched by now, had it been single
};

struct Metrics::Engine {
  struct Recall {
    Instant start{}, done = kNever;
  };
  struct Transfer {
    TransferId id{};
    Tier source{}, target{};
    uint64_t pages = 0;
    uint32_t recall = kNone;
  };
  EngineTotals totals;
  std::deque<Launch> launches;  // unanswered, oldest first
  std::vector<Launch> spare;
  Duration step_exposed{};  // StepOutcome.exposed, summed
  bool any_step_ended = false;
  bool step_running = false;
  Instant last_end{};
  Instant ticked{};
  std::vector<CallId> inbox;        // ready, but not yet queued
  std::vector<Transfer> transfers;  // in flight
  std::vector<Recall> recalls;
  std::vector<uint32_t> recall_of_page;  // 1 + index in recalls
  uint64_t steps_ended = 0;
  uint64_t pages_held = 0;  // by the rule of CoreGauges: without what is granted further ahead
  Instant pages_at{};
  CoreGauges gauges;
  Instant gauges_at{};
};

Metrics::Metrics(std::vector<EngineFacts> engines) : facts_(std::move(engines)), engines_(facts_.size()) {}
Metrics::~Metrics() = default;

const EngineTotals& Metrics::totals(EngineId engine) const { return engines_[raw(engine)].totals; }

// ---- events

void Metrics::saw_event(Instant now, EngineId engine, const Event& event) {
  KVT_CHECK(raw(engine) < engines_.size());
  Engine& here = engines_[raw(engine)];
  tick(here, now);
  if (const auto* call = std::get_if<CallReady>(&event)) ready(now, engine, *call);
  if (const auto* done = std::get_if<StepDone>(&event)) step_done(*done);
  if (const auto* done = std::get_if<TransferDone>(&event)) transfer_done(now, engine, done->transfer, false);
  if (const auto* fail = std::get_if<TransferFailed>(&event))
    transfer_done(now, engine, fail->transfer, true);
}

void Metrics::tick(Engine& engine, Instant now) {
  EngineTotals& totals = engine.totals;
  if (totals.first_event == kNever) totals.first_event = now;
  totals.last_event = now;
  if (!engine.transfers.empty()) {
    Duration& side = engine.step_running ? totals.hidden : totals.exposed;
    side = side + (now - engine.ticked);
  }
  engine.ticked = now;
}

void Metrics::ready(Instant now, EngineId engine, const CallReady& event) {
  CallRecord& call = at_grown(calls_, raw(event.call));
  KVT_CHECK(!call.known);
  call = {};
  call.known = true;
  call.session = event.session;
  call.engine = engine;
  call.prompt_tokens = event.prompt_tokens;
  call.output_tokens = event.output_tokens;
  call.ready = now;
  uint32_t slot = static_cast<uint32_t>(live_.size());
  if (live_free_.empty()) {
    live_.emplace_back();
  } else {
    slot = live_free_.back();
    live_free_.pop_back();
  }
  if (live_of_.size() <= raw(event.call)) live_of_.resize(raw(event.call) + 1, kNone);
  live_of_[raw(event.call)] = slot;
  live_[slot] = {};
  live_[slot].mark = now;
  Engine& here = engines_[raw(engine)];
  if (here.step_running) {
    here.inbox.push_back(event.call);
  } else {
    call.queued = now;
  }
  SessionRecord& session = at_grown(sessions_, raw(event.session));
  if (session.calls++ == 0) session.first_ready = now;
  if (session.calls_open++ == 0) session.served_since = now;
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
  for (const CallId call : engine.inbox) {
    if (calls_[raw(call)].queued == kNever) calls_[raw(call)].queued = done.ends.front();
  }
  engine.inbox.clear();

  const uint32_t page_tokens = facts_[raw(done.engine)].page_tokens;
  for (size_t i = 0; i < done.ends.size();) {
    const uint64_t step = raw(done.step) + i;
    if (!engine.launches.empty() && step >= engine.launches.front().step + engine.launches.front().repeat) {
      engine.spare.push_back(std::move(engine.launches.front()));
      engine.launches.pop_front();
    }
    KVT_CHECK(!engine.launches.empty());
    Launch& launch = engine.launches.front();
    KVT_CHECK(step >= launch.step);
    const uint64_t offset = step - launch.step;
    const size_t count =
        static_cast<size_t>(std::min<uint64_t>(done.ends.size() - i, launch.repeat - offset));
    Integral cells_ns = 0, slots_ns = 0, full_ns = 0;
    for (size_t k = 0; k < count; ++k) {
      const Instant end = done.ends[i + k];
      const Duration span = end - std::max(launch.at, engine.any_step_ended ? engine.last_end : launch.at);
      if (engine.any_step_ended) itl_.add(end - engine.last_end, launch.decodes);
      totals.busy = totals.busy + span;
      cells_ns += Integral{launch.cells + (offset + k) * launch.growing} * static_cast<uint64_t>(span.ns);
      full_ns += Integral{launch.full + (offset + k) * launch.growing_full} * static_cast<uint64_t>(span.ns);
      totals.reads_raw += launch.raw;
      totals.reads_effective += launch.effective;
      launch.raw += launch.decodes;
      launch.effective += launch.grown;
      slots_ns +=
          Integral{launch.slots + launch.slots_reached * page_tokens} * static_cast<uint64_t>(span.ns);
      engine.last_end = end;
      engine.any_step_ended = true;
      while (launch.slots_reached < launch.slot_offsets.size() &&
             launch.slot_offsets[launch.slots_reached] == offset + k + 1) {
        ++launch.slots_reached;
      }
      begin_grants(engine, step + k + 1, end);
    }
    totals.cells_ns += cells_ns;
    totals.slots_ns += slots_ns;
    totals.full_ns += full_ns;
    totals.steps += count;
    totals.call_steps += count * launch.entries;
    for (const PlanEntry& entry : launch.chunks) chunk_done(engine, StepId{step}, done.ends[i], entry);
    i += count;
  }
  const uint64_t next = raw(done.step) + done.ends.size();
  while (!engine.launches.empty() && engine.launches.front().step + engine.launches.front().repeat <= next) {
    engine.spare.push_back(std::move(engine.launches.front()));
    engine.launches.pop_front();
  }
  engine.step_running = !engine.launches.empty();
}

void Metrics::chunk_done(Engine& engine, StepId step, Instant end, const PlanEntry& entry) {
  const uint32_t slot = live_of_[raw(entry.call)];
  if (slot == kNone) return;  // ended while the step ran
  Live& live = live_[slot];
  if (live.phase == Live::Phase::kQueue || live.admitted_step > step) return;  // preempted meanwhile
  CallRecord& call = calls_[raw(entry.call)];
  mark(call, live, engine, end,
       entry.context < live.recompute_until ? TimeShare::kRecompute : TimeShare::kPrefill);
  const uint32_t reached = entry.context + entry.tokens;
  if (entry.context < live.recompute_until) {
    call.recomputed_tokens += std::min(reached, live.recompute_until) - entry.context;
  }
  live.computed = std::max(live.computed, reached);
  if (!entry.samples) return;
  live.phase = Live::Phase::kDecode;
  if (live.last_token != kNever) itl_.add(end - live.last_token, 1);
  live.last_token = kNever;
}

void Metrics::transfer_done(Instant now, EngineId engine, TransferId transfer, bool failed) {
  Engine& here = engines_[raw(engine)];
  const auto found = std::find_if(here.transfers.begin(), here.transfers.end(),
                                  [&](const Engine::Transfer& one) { return one.id == transfer; });
  KVT_CHECK(found != here.transfers.end());
  EngineTotals& totals = here.totals;
  ++(failed ? totals.transfers_failed : totals.transfers);
  const uint64_t bytes = failed ? 0 : found->pages * facts_[raw(engine)].page_bytes;
  if (found->target == Tier::kGpu) totals.bytes_in += bytes;
  if (found->source == Tier::kGpu) totals.bytes_out += bytes;
  if (found->recall != kNone)
    here.recalls[found->recall].done = failed ? here.recalls[found->recall].start : now;
  here.transfers.erase(found);
}

// ---- commands

void Metrics::saw_command(Instant now, const Command& command) {
  if (const auto* step = std::get_if<LaunchStep>(&command)) launched(now, *step);
  if (const auto* finish = std::get_if<FinishCall>(&command)) {
    ended(now, finish->call, finish->cancelled ? CallEnd::kCancelled : CallEnd::kFinished, finish->tokens);
  }
  if (const auto* tokens = std::get_if<TokensEmitted>(&command)) {
    Instant& first = calls_[raw(tokens->call)].first_token;
    if (first == kNever) first = now;
  }
  if (const auto* reject = std::get_if<RejectCall>(&command)) {
    rejections_.push_back({reject->call, reject->reason, reject->needed, reject->limit});
    ended(now, reject->call, CallEnd::kRejected, 0);
  }
  if (const auto* drop = std::get_if<DropCallState>(&command)) {
    if (drop->reason == DropCallState::Reason::kPreempted) preempted(now, *drop);
  }
  if (const auto* start = std::get_if<StartTransfer>(&command)) {
    Engine& engine = engines_[raw(start->engine)];
    tick(engine, now);
    engine.transfers.push_back(
        {start->transfer, start->source_tier, start->target_tier, start->source.size(), kNone});
    if (start->kind != TransferKind::kRecall) return;
    engine.transfers.back().recall = static_cast<uint32_t>(engine.recalls.size());
    engine.recalls.push_back({now, kNever});
    for (const PageId page : start->target) {
      at_grown(engine.recall_of_page, raw(page)) = static_cast<uint32_t>(engine.recalls.size());
    }
  }
}

void Metrics::launched(Instant now, const LaunchStep& step) {
  Engine& engine = engines_[raw(step.engine)];
  // Steps of an interrupted launch that never ran give their numbers to the next one.
  while (!engine.launches.empty()) {
    Launch& last = engine.launches.back();
    if (last.step + last.repeat <= raw(step.step)) break;
    last.held_offsets.resize(last.grants_held);
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
  launch.cells = launch.slots = launch.full = launch.raw = launch.effective = 0;
  launch.growing = launch.entries;
  launch.growing_full = 0;
  launch.grown = 0;
  launch.chunks.clear();
  launch.slot_offsets.clear();
  launch.held_offsets.clear();
  launch.slots_reached = launch.grants_held = 0;
  const uint32_t page_tokens = facts_[raw(step.engine)].page_tokens;
  for (const PlanEntry& entry : step.entries) {
    const uint32_t reached = entry.context + entry.tokens;
    launch.cells += reached;
    launch.slots += uint64_t{div_ceil(reached, page_tokens)} * page_tokens;
    if (entry.first) admit(now, step, entry);
    if (entry.kind == EntryKind::kDecode) {
      ++launch.decodes;
      launch.raw += entry.context;
      launch.effective += entry.live();
      launch.grown += entry.grows ? 1 : 0;
    } else if (entry.kind == EntryKind::kChunk) {
      launch.chunks.push_back(entry);
    }
  }
  if (step.held.full > 0) {
    launch.cells = step.held.cells;
    launch.slots = step.held.slots;
    launch.full = step.held.full;
    launch.growing = step.held.growing;
    launch.growing_full = step.held.growing_full;
  }
  KVT_CHECK(step.repeat == 1 || launch.chunks.empty());
  const uint32_t pages_gpu = facts_[raw(step.engine)].pages_gpu;
  const auto on_host = [&](const PageGrant& grant) { return pages_gpu > 0 && raw(grant.page) >= pages_gpu; };
  // With an arena, pages of context are the ones that have a home on the host.
  const bool arena = std::any_of(step.grants.begin(), step.grants.end(), on_host);
  for (const PageGrant& grant : step.grants) {
    if (grant.offset == 0) continue;
    if (on_host(grant) == arena) launch.slot_offsets.push_back(grant.offset);
    if (!on_host(grant)) launch.held_offsets.push_back(grant.offset);
  }
  engine.launches.push_back(std::move(launch));
  engine.step_running = true;
  begin_grants(engine, engine.steps_ended, now);
}

// A folded launch is granted all its pages at once. Here each counts from when its step would have been
// launched alone: when the step that many places before it has ended.
void Metrics::begin_grants(Engine& engine, uint64_t steps_ended, Instant at) {
  engine.steps_ended = steps_ended;
  const uint64_t launched =
      steps_ended + facts_[static_cast<size_t>(&engine - engines_.data())].steps_in_flight_max;
  for (Launch& launch : engine.launches) {
    while (launch.grants_held < launch.held_offsets.size() &&
           launch.step + launch.held_offsets[launch.grants_held] < launched) {
      pages_until(engine, at);
      ++launch.grants_held;
      ++engine.pages_held;
    }
  }
  note_peaks(engine);
}

void Metrics::admit(Instant now, const LaunchStep& step, const PlanEntry& entry) {
  const Engine& engine = engines_[raw(step.engine)];
  CallRecord& call = calls_[raw(entry.call)];
  Live& live = live_[live_of_[raw(entry.call)]];
  const Duration recalled = recall_wait(engine, step, entry.call, live.mark);
  Duration& queue = call.share(TimeShare::kQueue);
  mark(call, live, engine, now, TimeShare::kQueue);
  queue.ns -= recalled.ns;
  call.share(TimeShare::kTransfer).ns += recalled.ns;
  live.phase = Live::Phase::kPrefill;
  live.admitted_step = step.step;
  if (live.admitted_before) {
    call.reused_again_tokens += entry.context;
  } else {
    call.admitted = now;
    call.reused_tokens = entry.context;
    call.reused_live = entry.live();
    if (call.queued == kNever) call.queued = now;
  }
  live.admitted_before = true;
}

// How much of [from, now) the call waited for the pages it adopts. What was recalled for it is the end
// of its prefix, so the search goes backwards and stops at the first page that was there already.
Duration Metrics::recall_wait(const Engine& engine, const LaunchStep& step, CallId call, Instant from) const {
  if (engine.recalls.empty()) return {};
  const auto mine = std::find_if(step.adoptions.begin(), step.adoptions.end(),
                                 [&](const Adoption& one) { return one.call == call; });
  if (mine == step.adoptions.end()) return {};
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
  // Their union: recalls of one prefix may overlap, or lie far apart.
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

void Metrics::preempted(Instant now, const DropCallState& drop) {
  const uint32_t slot = live_of_[raw(drop.call)];
  KVT_CHECK(slot != kNone);
  Live& live = live_[slot];
  CallRecord& call = calls_[raw(drop.call)];
  const Engine& engine = engines_[raw(drop.engine)];
  if (live.phase == Live::Phase::kDecode) {
    live.last_token = engine.last_end;
    live.recompute_until = UINT32_MAX;  // everything up to its next token
  } else if (call.first_token == kNever) {
    live.recompute_until = std::max(live.recompute_until, live.computed);
  }
  mark(call, live, engine, now, running_share(live));
  live.phase = Live::Phase::kQueue;
  ++call.preemptions;
}

void Metrics::ended(Instant now, CallId id, CallEnd how, uint32_t tokens) {
  KVT_CHECK(raw(id) < live_of_.size());
  const uint32_t slot = live_of_[raw(id)];
  KVT_CHECK(slot != kNone);
  CallRecord& call = calls_[raw(id)];
  mark(call, live_[slot], engines_[raw(call.engine)], now, running_share(live_[slot]));
  call.end = how;
  call.finished = now;
  call.output_tokens = how == CallEnd::kRejected ? call.output_tokens : tokens;
  if (call.queued == kNever) call.queued = now;
  live_of_[raw(id)] = kNone;
  live_free_.push_back(slot);
  SessionRecord& session = sessions_[raw(call.session)];
  session.last_finished = now;
  if (--session.calls_open == 0) session.served = session.served + (now - session.served_since);
}

TimeShare Metrics::running_share(const Live& live) const {
  if (live.phase == Live::Phase::kQueue) return TimeShare::kQueue;
  if (live.phase == Live::Phase::kDecode) return TimeShare::kDecode;
  return live.computed < live.recompute_until ? TimeShare::kRecompute : TimeShare::kPrefill;
}

void Metrics::mark(CallRecord& call, Live& live, const Engine& engine, Instant now, TimeShare share) {
  int64_t left = now.ns - live.mark.ns;
  if (share != TimeShare::kQueue) {
    const int64_t host = std::clamp(engine.totals.host.ns - live.host_mark.ns, int64_t{0}, left);
    left -= host;
    const int64_t exposed = std::clamp(engine.step_exposed.ns - live.exposed_mark.ns, int64_t{0}, left);
    left -= exposed;
    call.share(TimeShare::kHost).ns += host;
    call.share(TimeShare::kTransfer).ns += exposed;
  }
  call.share(share).ns += left;
  live.mark = now;
  live.host_mark = engine.totals.host;
  live.exposed_mark = engine.step_exposed;
}

// ---- states

void Metrics::saw_state(Instant now, EngineId engine, const Core& core) {
  saw_gauges(now, engine, core.gauges());
}

void Metrics::saw_gauges(Instant now, EngineId engine, const CoreGauges& gauges) {
  Engine& here = engines_[raw(engine)];
  running_.add(here.gauges_at, now, here.gauges.calls_running);
  waiting_.add(here.gauges_at, now, here.gauges.calls_waiting);
  here.gauges = gauges;
  here.gauges_at = now;
  if (gauges.calls_running == 0) {
    // A launch that was interrupted and left nobody to run is never answered in full.
    here.step_running = false;
    for (Launch& launch : here.launches) here.spare.push_back(std::move(launch));
    here.launches.clear();
  }
  pages_until(here, now);
  here.pages_held = gauges.pages_gpu_held;
  note_peaks(here);
}

void Metrics::note_peaks(Engine& engine) {
  const auto held = static_cast<uint32_t>(engine.pages_held);
  engine.totals.pages_held_peak = std::max(engine.totals.pages_held_peak, held);
  engine.totals.pages_resident_peak =
      std::max(engine.totals.pages_resident_peak, held + engine.gauges.pages_gpu_cached);
}

void Metrics::pages_until(Engine& engine, Instant now) {
  const Duration span = now - engine.pages_at;
  if (span.ns <= 0) return;
  engine.totals.pages_held_ns += Integral{engine.pages_held} * static_cast<uint64_t>(span.ns);
  pages_series_.add(engine.pages_at, now, engine.pages_held);
  engine.pages_at = now;
}

}  // namespace kvtwin
