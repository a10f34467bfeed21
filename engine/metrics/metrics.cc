#include "engine/metrics/metrics.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/metrics/metrics_state.h"

namespace kvtwin {

Metrics::Metrics(std::vector<EngineFacts> engines) : facts_(std::move(engines)), engines_(facts_.size()) {}
Metrics::~Metrics() = default;

const EngineTotals& Metrics::totals(EngineId engine) const { return engines_[raw(engine)].totals; }

// ---- events

void Metrics::saw_event(Instant now, EngineId engine, const Event& event) {
  KVT_CHECK(raw(engine) < engines_.size());
  Engine& here = engines_[raw(engine)];
  tick(here, now);
  if (const auto* request = std::get_if<RequestReady>(&event)) {
    request->emitted > 0 ? arrived(now, engine, *request) : ready(now, engine, *request);
  }
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
    (engine.step_running ? hidden_ : exposed_).add(engine.ticked, now, 1);
  }
  engine.ticked = now;
}

void Metrics::ready(Instant now, EngineId engine, const RequestReady& event) {
  RequestRecord& request = at_grown(requests_, raw(event.request));
  KVT_CHECK(!request.known);
  request = {};
  request.known = true;
  request.session = event.session;
  request.engine = engine;
  request.prompt_tokens = event.prompt_tokens;
  request.output_tokens = event.output_tokens;
  const Duration front = facts_[raw(engine)].front_end.of(event.prompt_tokens);
  request.ready = Instant{now.ns - front.ns};
  request.fraction(TimeCategory::kHost) = front;
  uint32_t request_index = static_cast<uint32_t>(live_.size());
  if (live_free_.empty()) {
    live_.emplace_back();
  } else {
    request_index = live_free_.back();
    live_free_.pop_back();
  }
  if (live_of_.size() <= raw(event.request)) live_of_.resize(raw(event.request) + 1, kNone);
  live_of_[raw(event.request)] = request_index;
  live_[request_index] = {};
  live_[request_index].mark = now;
  Engine& here = engines_[raw(engine)];
  if (here.step_running) {
    here.inbox.push_back(event.request);
  } else {
    request.queued = now;
  }
  SessionRecord& session = at_grown(sessions_, raw(event.session));
  if (session.requests++ == 0) session.first_ready = request.ready;
  if (session.requests_open++ == 0) session.served_since = request.ready;
}

// The request comes from the engine that computed its prompt. Its time is now measured by this engine's
// clock.
void Metrics::arrived(Instant now, EngineId engine, const RequestReady& event) {
  RequestRecord& request = requests_[raw(event.request)];
  Live& live = live_[live_of_[raw(event.request)]];
  request.engine = engine;
  rebase(live, engines_[raw(engine)], now);
}

void Metrics::handed_over(Instant now, const HandOver& over) {
  const Engine& engine = engines_[raw(over.engine)];
  RequestRecord& request = requests_[raw(over.request)];
  Live& live = live_[live_of_[raw(over.request)]];
  mark(request, live, engine, now, running_fraction(live));
  live.phase = Live::Phase::kQueue;
  live.last_token = now;
}

void Metrics::received(Instant now, Engine& here, const Transfer& transfer, bool failed) {
  here.totals.bytes_received +=
      failed ? 0 : transfer.pages * facts_[static_cast<size_t>(&here - engines_.data())].page_bytes;
  const uint32_t request_index = live_of_[raw(transfer.request)];
  if (request_index == kNone) return;  // cancelled meanwhile
  mark(requests_[raw(transfer.request)], live_[request_index], here, now, TimeCategory::kTransfer);
  if (failed) live_[request_index].recompute_until = UINT32_MAX;
}

void Metrics::transfer_done(Instant now, EngineId engine, TransferId transfer, bool failed) {
  Engine& here = engines_[raw(engine)];
  const auto found = std::find_if(here.transfers.begin(), here.transfers.end(),
                                  [&](const Transfer& one) { return one.id == transfer; });
  KVT_CHECK(found != here.transfers.end());
  EngineTotals& totals = here.totals;
  ++(failed ? totals.transfers_failed : totals.transfers);
  if (found->kind == TransferKind::kReceive) {
    received(now, here, *found, failed);
    here.transfers.erase(found);
    return;
  }
  const uint64_t bytes = failed ? 0 : found->pages * facts_[raw(engine)].page_bytes;
  if (found->target == Tier::kGpu) {
    totals.bytes_in += bytes;
    in_.spread(found->at, now, bytes);
  }
  if (found->source == Tier::kGpu) {
    totals.bytes_out += bytes;
    out_.spread(found->at, now, bytes);
  }
  if (found->source == Tier::kDisk) totals.bytes_from_disk += bytes;
  if (found->target == Tier::kDisk) totals.bytes_to_disk += bytes;
  if (found->kind == TransferKind::kLoad && !failed) {
    (found->source == Tier::kDisk ? totals.hits_disk : totals.hits_host) +=
        found->pages * facts_[raw(engine)].page_tokens;
  }
  if (found->recall != kNone)
    here.recalls[found->recall].done = failed ? here.recalls[found->recall].start : now;
  here.transfers.erase(found);
}

// ---- commands

void Metrics::saw_command(Instant now, const Command& command) {
  if (const auto* step = std::get_if<LaunchStep>(&command)) launched(now, *step);
  if (const auto* finish = std::get_if<FinishRequest>(&command)) {
    ended(now, finish->request, finish->cancelled ? RequestEnd::kCancelled : RequestEnd::kFinished,
          finish->tokens);
  }
  if (const auto* tokens = std::get_if<TokensEmitted>(&command)) {
    Instant& first = requests_[raw(tokens->request)].first_token;
    if (first == kNever) first = now;
  }
  if (const auto* reject = std::get_if<RejectRequest>(&command)) {
    rejections_.push_back({reject->request, reject->reason, reject->needed, reject->limit});
    ended(now, reject->request, RequestEnd::kRejected, 0);
  }
  if (const auto* over = std::get_if<HandOver>(&command)) handed_over(now, *over);
  if (const auto* drop = std::get_if<DropRequestState>(&command)) {
    if (drop->reason == DropRequestState::Reason::kPreempted) preempted(now, *drop);
  }
  if (const auto* start = std::get_if<StartTransfer>(&command)) {
    Engine& engine = engines_[raw(start->engine)];
    tick(engine, now);
    engine.transfers.push_back({start->transfer, start->kind, now, start->source_tier, start->target_tier,
                                start->source.size(), kNone, start->request});
    if (start->kind == TransferKind::kReceive) {
      mark(requests_[raw(start->request)], live_[live_of_[raw(start->request)]], engine, now,
           TimeCategory::kQueue);
    }
    if (start->kind != TransferKind::kLoad && start->kind != TransferKind::kSwapIn) return;
    engine.transfers.back().recall = static_cast<uint32_t>(engine.recalls.size());
    engine.recalls.push_back({now, kNever});
    for (const PageId page : start->target) {
      at_grown(engine.recall_of_page, raw(page)) = static_cast<uint32_t>(engine.recalls.size());
    }
  }
}

void Metrics::preempted(Instant now, const DropRequestState& drop) {
  const uint32_t request_index = live_of_[raw(drop.request)];
  KVT_CHECK(request_index != kNone);
  Live& live = live_[request_index];
  RequestRecord& request = requests_[raw(drop.request)];
  const Engine& engine = engines_[raw(drop.engine)];
  if (live.phase == Live::Phase::kDecode) {
    live.last_token = engine.last_end;
    live.recompute_until = UINT32_MAX;  // all positions up to its next token
  } else if (request.first_token == kNever) {
    live.recompute_until = std::max(live.recompute_until, live.computed);
  }
  mark(request, live, engine, now, running_fraction(live));
  live.phase = Live::Phase::kQueue;
  ++request.preemptions;
}

void Metrics::ended(Instant now, RequestId id, RequestEnd how, uint32_t tokens) {
  KVT_CHECK(raw(id) < live_of_.size());
  const uint32_t request_index = live_of_[raw(id)];
  KVT_CHECK(request_index != kNone);
  RequestRecord& request = requests_[raw(id)];
  mark(request, live_[request_index], engines_[raw(request.engine)], now,
       running_fraction(live_[request_index]));
  request.end = how;
  request.finished = now;
  request.output_tokens = how == RequestEnd::kRejected ? request.output_tokens : tokens;
  if (request.queued == kNever) request.queued = now;
  live_of_[raw(id)] = kNone;
  live_free_.push_back(request_index);
  SessionRecord& session = sessions_[raw(request.session)];
  session.last_finished = now;
  if (--session.requests_open == 0) session.served = session.served + (now - session.served_since);
}

TimeCategory Metrics::running_fraction(const Live& live) const {
  if (live.phase == Live::Phase::kQueue) return TimeCategory::kQueue;
  if (live.phase == Live::Phase::kDecode) return TimeCategory::kDecode;
  return live.computed < live.recompute_until ? TimeCategory::kRecompute : TimeCategory::kPrefill;
}

void Metrics::mark(RequestRecord& request, Live& live, const Engine& engine, Instant now,
                   TimeCategory fraction) {
  int64_t left = now.ns - live.mark.ns;
  if (fraction != TimeCategory::kQueue) {
    const int64_t host = std::clamp(engine.totals.host.ns - live.host_mark.ns, int64_t{0}, left);
    left -= host;
    const int64_t exposed = std::clamp(engine.step_exposed.ns - live.exposed_mark.ns, int64_t{0}, left);
    left -= exposed;
    request.fraction(TimeCategory::kHost).ns += host;
    request.fraction(TimeCategory::kTransfer).ns += exposed;
  }
  request.fraction(fraction).ns += left;
  rebase(live, engine, now);
}

void Metrics::rebase(Live& live, const Engine& engine, Instant now) {
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
  running_.add(here.gauges_at, now, here.gauges.requests_running);
  waiting_.add(here.gauges_at, now, here.gauges.requests_waiting);
  cached_.add(here.gauges_at, now, here.gauges.pages_gpu_cached);
  host_pages_.add(here.gauges_at, now, here.gauges.pages_host_total - here.gauges.pages_host_free);
  if (here.gauges.pages_disk_total > 0)
    disk_pages_.add(here.gauges_at, now, here.gauges.pages_disk_total - here.gauges.pages_disk_free);
  here.gauges = gauges;
  here.gauges_at = now;
  if (!gauges.step_in_flight) {
    // The remaining steps of an interrupted launch never run.
    here.step_running = false;
    for (Launch& launch : here.launches) here.spare.push_back(std::move(launch));
    here.launches.clear();
  }
  pages_until(here, now);
  here.pages_held = gauges.pages_gpu_held;
  here.totals.pages_disk_peak =
      std::max(here.totals.pages_disk_peak, gauges.pages_disk_total - gauges.pages_disk_free);
  here.pages_int2_held = gauges.pages_int2_held;  // allocated for prompts only, never ahead
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
  engine.totals.pages_int2_held_ns += Integral{engine.pages_int2_held} * static_cast<uint64_t>(span.ns);
  pages_series_.add(engine.pages_at, now, engine.pages_held);
  if (engine.pages_int2_held > 0) int2_pages_.add(engine.pages_at, now, engine.pages_int2_held);
  engine.pages_at = now;
}
}  // namespace kvtwin
