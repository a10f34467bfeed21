#include "engine/policy/core.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/planted.h"
#include "engine/base/prng.h"
#include "engine/policy/core_state.h"
#include "engine/policy/registry.h"

namespace kvtwin {

namespace {

// Frames with a cell in a page, and those whose cells all wait.
uint32_t frames_max(const CoreConfig& c) {
  const uint64_t waiting = uint64_t{c.calls_max} * (c.page_tokens + 1);
  return static_cast<uint32_t>(std::min<uint64_t>(c.pages_gpu + waiting, UINT32_MAX / 2));
}

// Layouts that keep slots share pages by position; others share what a chunk's end left.
std::unique_ptr<SnapshotCache> make_snapshots(const CoreConfig& c, const Retention& retention) {
  if (!c.prefix_cache || retention.keeping() != Keeping::kMove) return nullptr;
  return std::make_unique<SnapshotCache>(retention.chunk_tokens() / c.unit_tokens, c.pages_gpu,
                                         retention.shape(),
                                         make_prefix_eviction(c, retention.chunk_tokens()));
}

std::unique_ptr<DualPool> make_dual_pool(const CoreConfig& c, const PolicyAxes& axes) {
  if (!axes.precision->by_tag()) return nullptr;
  return std::make_unique<DualPool>(DualPoolSize{c.pages_int2, c.pages_gpu - c.pages_int2}, c.page_tokens,
                                    c.policies.precision_spec.ageing == Ageing::kRequantise);
}

}  // namespace

Core::Core(const CoreConfig& config) : Core(config, make_axes(config.policies)) {}
Core::Core(const CoreConfig& config, PolicyAxes axes)
    : state_(std::make_unique<State>(config, std::move(axes))) {}
Core::~Core() = default;
Core::Core(Core&&) noexcept = default;

void Core::apply(Instant now, const Event& event, std::vector<Command>* commands) {
  state_->apply(now, event, commands);
}

bool Core::idle() const {
  return state_->calls_live == 0 && state_->launches.empty() && state_->transfers_live == 0 &&
         state_->handed_over.empty();
}

uint32_t Core::tokens_cached(const CallReady& call) const {
  const State& s = *state_;
  const auto name_space = s.axes.identity->name_space(call.session);
  if (!s.config.prefix_cache || !name_space.has_value()) return 0;
  if (s.snapshots) {
    const uint32_t chunk = s.retention.chunk_tokens();
    return s.snapshots->find(*name_space, call.identity, call.prompt_tokens / chunk) * chunk;
  }
  const uint32_t page = s.config.page_tokens;
  return s.index.find_on_gpu(*name_space, call.identity, call.prompt_tokens / page) * page;
}

uint64_t Core::digest() const { return draw({state_->digest, state_->done}); }

Core::State::State(const CoreConfig& c, PolicyAxes policies)
    : config(c),
      axes(std::move(policies)),
      retention(config, axes),
      fit(config, axes, retention),
      arena(axes.placement->uses_arena()),
      exact_tail(axes.precision->by_tag() ? 0 : axes.precision->exact_tokens_max()),
      dual(make_dual_pool(c, axes)),
      gpu(PageId{0}, dual ? frames_max(c) : c.pages_gpu, c.page_order),
      host(c.pages_host == 0
               ? nullptr
               : std::make_unique<PagePool>(PageId{c.pages_gpu}, c.pages_host, PageOrder::kLowestFirst)),
      disk(c.pages_disk == 0 ? nullptr
                             : std::make_unique<PagePool>(PageId{c.pages_gpu + c.pages_host}, c.pages_disk,
                                                          PageOrder::kLowestFirst)),
      index(c.page_tokens / c.unit_tokens, arena ? host.get() : &gpu, arena ? nullptr : host.get(),
            make_prefix_eviction(c, c.page_tokens), dual.get(), disk.get()),
      snapshots(make_snapshots(c, retention)),
      sessions(axes.identity->session_states_max()) {
  KVT_CHECK(!validate_limits(c).has_value());
  KVT_CHECK(!validate_axes(axes, c.policies, c).has_value());
}

void Core::State::apply(Instant at, const Event& event, std::vector<Command>* commands) {
  KVT_CHECK(at >= now);
  now = at;
  out = commands;
  if (!std::holds_alternative<StepDone>(event)) cut_stretch();
  std::visit([this](const auto& e) { on(e); }, event);
  while (plan_step()) {
  }
  start_copies_down();
  out = nullptr;
}

uint64_t Core::State::draw_record(std::initializer_list<uint64_t> record) { return draw(record); }

// --- calls come and go

void Core::State::on(const CallReady& event) {
  if (reject(event)) return;
  const Slot slot = take_slot();
  CallState& call = calls[slot];
  call.id = event.call;
  call.key = event.key();
  call.prompt = event.prompt_tokens;
  call.output = event.output_tokens;
  if (config.prefill_only && event.output_tokens > 1) {
    call.output = 1;
    call.hands_over = true;
  }
  call.identity.assign(event.identity.begin(), event.identity.end());
  call.triggers.assign(event.triggers.begin(), event.triggers.end());
  if (dual) {
    call.cells.prompt = event.prompt_tokens;
    bits_of(event.roles, event.turn, event.prompt_tokens, config.policies.precision_spec, &call.cells.bits);
  }
  uint64_t units = 0, units_public = 0;
  for (const UnitRun& run : call.identity) {
    if ((run.space & kPrivateSpace) == 0 && units_public == units) units_public += run.count;
    units += run.count;
  }
  const uint32_t page_units = config.page_tokens / config.unit_tokens;
  const auto name_space = axes.identity->name_space(event.session);
  const bool cached = config.prefix_cache && name_space.has_value();
  call.name_space = name_space.value_or(0);
  if (snapshots) {
    const uint32_t chunk_units = retention.chunk_tokens() / config.unit_tokens;
    call.chunks_public = cached ? static_cast<uint32_t>(units_public / chunk_units) : 0;
  } else {
    call.pages_public = cached ? static_cast<uint32_t>(units_public / page_units) : 0;
    call.pages_known = cached ? static_cast<uint32_t>(units / page_units) : 0;
  }
  call.phase = CallState::Phase::kWaiting;
  if (event.emitted > 0) begin_arrival(event, &call);
  if (raw(event.call) >= slots.size()) slots.resize(raw(event.call) + 1, UINT32_MAX);
  slots[raw(event.call)] = slot;
  waiting.push_back(slot);
  cleaning_barred = spilling_barred = false;
  ++calls_live;
  sessions.begin(event.session);
  session_here(event.session);
  drop_surplus_sessions();
}

// More sessions have a memory than the world is to keep.
void Core::State::drop_surplus_sessions() {
  for (SessionId session; sessions.take_surplus(&session);) {
    note({kSessionDropped, raw(session)});
    out->push_back(DropSessionState{config.engine, session});
  }
}

bool Core::State::reject(const CallReady& event) {
  const std::optional<Misfit> misfit = fit.misfit(event);
  if (!misfit.has_value()) return false;
  note({kRejected, raw(event.call), static_cast<uint64_t>(misfit->reason)});
  out->push_back(RejectCall{config.engine, event.call, misfit->reason, misfit->needed, misfit->limit});
  if (event.emitted > 0) out->push_back(SourceRead{config.engine, event.call, event.from});
  return true;
}

void Core::State::on(const CallCancelled& event) {
  const Slot slot = slot_of(event.call);
  if (slot == UINT32_MAX) return;  // it finished at this very instant
  CallState& call = calls[slot];
  call.ending = call.cancelled = true;
  for (Launch& launch : launches) {
    for (const Launch::Member& member : launch.members) {
      if (member.call == event.call) launch.decisive = true;
    }
  }
  if (call.launches == 0) end_call(slot);
}

void Core::State::on(const Timer&) {}  // no policy sets one yet

void Core::State::end_call(Slot slot) {
  CallState& call = calls[slot];
  cleaning_barred = spilling_barred = false;
  if (call.phase == CallState::Phase::kWaiting) {
    waiting.erase(std::find(waiting.begin(), waiting.end(), slot));
    if (!call.host_pages.empty()) let_go_of_host(&call);
    if (call.arrives) drop_source(&call);
  } else if (call.phase == CallState::Phase::kAway) {
    cancel_demotion(slot);
  } else if (call.phase == CallState::Phase::kRecalling) {
    --recalling;  // the transfer goes on without it
    reserved_total -= call.reserved;
    reserved_host_total -= call.reserved_host;
  } else if (call.phase == CallState::Phase::kRunning) {
    running.erase(std::find(running.begin(), running.end(), slot));
    let_go(&call, false);
  }
  note({kEnded, done, raw(call.id), call.emitted});
  out->push_back(FinishCall{config.engine, call.id, call.emitted, call.cancelled});
  out->push_back(
      DropCallState{config.engine, call.id,
                    call.cancelled ? DropCallState::Reason::kCancelled : DropCallState::Reason::kFinished});
  forget(slot);
}

// The call is over for this engine: its slot is free for another.
void Core::State::forget(Slot slot) {
  CallState& call = calls[slot];
  slots[raw(call.id)] = UINT32_MAX;
  call.phase = CallState::Phase::kUnused;
  unused.push_back(slot);
  --calls_live;
  sessions.end(call.key.session);
  session_left(call.key.session);
  drop_surplus_sessions();
}

// A running call's pages go: what others may use into the index, the rest, last page first, to the pool.
void Core::State::let_go(CallState* call, bool preempted) {
  cells_held -= cells_of(*call, call->kv);
  pages_running -= table_pages(*call);
  // Formats by tag: of what was planned for it in this very step nothing will be written.
  const uint32_t settled =
      dual ? std::min(call->settled, call->kv / config.page_tokens) : pages_settled(*call, call->kv);
  publish_pages(call, std::min(settled, preempted ? call->pages_known : call->pages_public));
  if (KVT_PLANTED(leak_on_preempt) && preempted && !call->pages.empty()) call->pages.pop_back();
  for (auto page = call->pages.rbegin(); page != call->pages.rend(); ++page) {
    if (*page != kNoPage) give_page(*page);
  }
  call->pages.clear();
  spare_pages.clear();
  call->tables.clear(&spare_pages);
  for (const PageId page : spare_pages) give_page(page);
  call->holes = call->dead = call->dead_soon = 0;
  call->page_dead.clear();
  prefixes().mark(snapshots ? call->snapshots : call->lease, call->key.session);
  if (!KVT_PLANTED(stale_lease) || !preempted) index.release(call->lease, true);
  call->lease = {};
  if (snapshots) snapshots->release(call->snapshots, true);
  call->snapshots = {};
  reserved_total -= call->reserved;
  reserved_2_total -= call->reserved_2;
  call->reserved = call->beyond = call->reserved_2 = 0;
  DualPool::reset(&call->cells);
  if (arena) let_go_of_host(call);
}

void Core::State::publish_pages(CallState* call, uint32_t pages_limit) {
  if (call->insert_barred || pages_limit <= call->lease.pages) return;
  std::vector<PageId>& own = own_pages(call);
  const std::span<const PageId> pages(own.data(), pages_limit - call->lease.pages);
  const size_t first = call->lease.pages;
  const std::span<const uint16_t> dead = call->page_dead.size() > first
                                             ? std::span(call->page_dead).subspan(first)
                                             : std::span<const uint16_t>{};
  if (index.insert(call->name_space, call->identity, pages, &call->lease,
                   dead.subspan(0, std::min(dead.size(), pages.size())))) {
    own.erase(own.begin(), own.begin() + static_cast<ptrdiff_t>(pages.size()));
  } else {
    call->insert_barred = true;
  }
}

Slot Core::State::take_slot() {
  if (unused.empty()) {
    calls.emplace_back();
    return static_cast<Slot>(calls.size() - 1);
  }
  const Slot slot = unused.back();
  unused.pop_back();
  CallState& call = calls[slot];
  CallState fresh;
  fresh.pages = std::move(call.pages);  // keeps what it has allocated
  fresh.host_pages = std::move(call.host_pages);
  fresh.identity = std::move(call.identity);
  fresh.triggers = std::move(call.triggers);
  fresh.source = std::move(call.source);
  fresh.tables = std::move(call.tables);
  fresh.page_dead = std::move(call.page_dead);
  fresh.page_dead.clear();
  fresh.cells = std::move(call.cells);
  DualPool::reset(&fresh.cells);
  call = std::move(fresh);
  return slot;
}

Slot Core::State::slot_of(CallId call) const {
  return raw(call) < slots.size() ? slots[raw(call)] : UINT32_MAX;
}

// --- what others may know

CoreGauges Core::gauges() const {
  const State& s = *state_;
  // Pages and cells of steps that no world has been allowed to start yet are not held yet.
  uint64_t pages_ahead = 0, host_ahead = 0, cells_ahead = 0;
  if (!s.launches.empty()) {
    const Launch& last = s.launches.back();
    const uint64_t started = std::max(last.first + 1, s.done + s.config.steps_in_flight_max);
    if (started < last.end) {
      const auto steps = static_cast<uint32_t>(last.end - started);
      for (const Launch::Member& member : last.members) {
        const CallState& call = s.calls[member.slot];
        cells_ahead += s.cells_of(call, call.kv) - s.cells_of(call, call.kv - steps);
      }
      const auto ahead =
          std::lower_bound(last.grants.begin(), last.grants.end(), started - last.first,
                           [](const PageGrant& grant, uint64_t offset) { return grant.offset < offset; });
      host_ahead = static_cast<uint64_t>(std::count_if(
          ahead, last.grants.end(), [&s](const PageGrant& grant) { return s.on_host(grant.page); }));
      pages_ahead = static_cast<uint64_t>(last.grants.end() - ahead) - host_ahead;
    }
  }
  CoreGauges g;
  g.calls_running = static_cast<uint32_t>(s.running.size());
  g.calls_waiting = s.calls_live - g.calls_running;
  g.step_in_flight = !s.launches.empty();
  g.pages_gpu_total = s.gpu.pages_total();
  g.pages_gpu_free = s.gpu.pages_free() + static_cast<uint32_t>(pages_ahead);
  g.pages_gpu_cached = s.pages_loose();
  if (s.dual) {
    g.pages_gpu_total = s.config.pages_gpu;
    g.pages_gpu_free =
        s.dual->pages_free(false) + s.dual->pages_free(true) + static_cast<uint32_t>(pages_ahead);
    g.pages_gpu_cached = s.dual->pages_loose(false) + s.dual->pages_loose(true);
    g.pages_int2_total = s.config.pages_int2;
    g.pages_int2_held = s.config.pages_int2 - s.dual->pages_free(false) - s.dual->pages_loose(false);
  }
  g.pages_gpu_held = g.pages_gpu_total - g.pages_gpu_free - g.pages_gpu_cached;
  g.pages_evicted = s.index.pages_evicted() + s.snapshots_evicted;
  g.pages_host_total = s.host ? s.host->pages_total() : 0;
  g.pages_host_free = s.host ? s.host->pages_free() + static_cast<uint32_t>(host_ahead) : 0;
  g.pages_disk_total = s.config.pages_disk;
  g.pages_disk_free = s.disk ? s.disk->pages_free() : 0;
  g.cells_held = s.cells_held - cells_ahead;
  g.slots_held = (s.pages_running - (s.arena ? host_ahead : pages_ahead)) * s.config.page_tokens;
  if (s.dual) {  // cells that wait for their group have slots in staging
    for (const Slot slot : s.running) g.slots_held += s.calls[slot].cells.waiting.size();
  }
  return g;
}

void Core::check_invariants() const { state_->check_invariants(); }

// free + owned by calls + owned by the index + in flight = capacity, in each tier.
void Core::State::check_invariants() const {
  gpu.check_invariants();
  if (host) host->check_invariants();
  if (disk) disk->check_invariants();
  index.check_invariants();
  if (snapshots) snapshots->check_invariants();
  sessions.check_invariants();
  uint64_t pages_own = 0, host_own = 0, cells = 0, held = 0, reserved = 0, reserved_host = 0, live = 0;
  for (const CallState& call : calls) {
    if (call.phase == CallState::Phase::kUnused) continue;
    ++live;
    KVT_CHECK(call.emitted <= call.sampled);
    KVT_CHECK(call.sampled <= call.output);
    reserved += call.reserved;
    reserved_host += call.reserved_host;
    if (call.phase != CallState::Phase::kRunning) {
      KVT_CHECK(call.pages.empty());
      KVT_CHECK(call.host_pages.empty() || call.phase == CallState::Phase::kWaiting);
      // Whoever waits has its KV on the host, or nowhere.
      KVT_CHECK(call.kv == 0 || !call.host_pages.empty() || call.phase != CallState::Phase::kWaiting);
      host_own += call.host_pages.size();
      KVT_CHECK(call.tables.pages() == 0);
      KVT_CHECK(call.lease.pages == 0);
      KVT_CHECK(call.snapshots.pages == 0);
      continue;
    }
    cells += cells_of(call, call.kv);
    held += table_pages(call);
    host_own += call.host_pages.size();
    for (const PageId page : call.host_pages) KVT_CHECK(host->owned(page));
    for (const PageId page : call.pages) KVT_CHECK(page == kNoPage || gpu.owned(page));
    KVT_CHECK(call.holes ==
              index.holes(call.lease) + std::count(call.pages.begin(), call.pages.end(), kNoPage));
    pages_own += call.pages_held() - (call.lease.pages - index.holes(call.lease)) - call.tables.lent();
    if (arena) {
      KVT_CHECK(uint64_t{table_pages(call)} * config.page_tokens >= call.kv - call.dead);
      KVT_CHECK(!call.in_arena || call.pages.size() == gpu_pages_held(config.policies.retrieval_spec,
                                                                      config.page_tokens, table_pages(call)));
    } else if (!retention.by_group()) {
      KVT_CHECK(!dual || call.cells.at == call.kv);
      KVT_CHECK(uint64_t{call.pages_span()} * config.page_tokens >= call.kv);
      KVT_CHECK(cells_of(call, call.kv) <= uint64_t{call.pages_held()} * config.page_tokens);
    } else {
      KVT_CHECK(call.pages.empty());
      call.tables.check(call.kv);
      for (uint32_t g = 0; g < call.tables.groups(); ++g) {
        for (uint32_t i = 0; i < call.tables.pages(g); ++i) KVT_CHECK(gpu.owned(call.tables.page(g, i)));
      }
    }
  }
  uint64_t gpu_in_flight = 0, host_in_flight = 0, disk_in_flight = 0;
  check_transfers(&gpu_in_flight, &host_in_flight, &disk_in_flight);
  pages_own += pages_handed_over();
  KVT_CHECK(live == calls_live);
  KVT_CHECK(cells == cells_held);
  KVT_CHECK(held == pages_running);
  KVT_CHECK(reserved == reserved_total);
  KVT_CHECK(reserved_host == reserved_host_total);
  const uint32_t in_snapshots = snapshots ? snapshots->pages() : 0;
  const uint32_t in_index = arena ? 0 : index.pages_gpu();
  const uint32_t host_in_index = arena ? index.pages_gpu() : index.pages_host();
  KVT_CHECK(gpu.pages_owned() == pages_own + in_index + in_snapshots + gpu_in_flight);
  KVT_CHECK(!host || host->pages_owned() == host_own + host_in_index + host_in_flight);
  KVT_CHECK(!disk || disk->pages_owned() == index.pages_disk() + disk_in_flight);
  KVT_CHECK(running.size() <= config.calls_max);
  KVT_CHECK(launched >= done);
  check_reserves();
  KVT_CHECK(!host || reserved_host_total <= host->pages_free() + (arena ? index.pages_evictable() : 0));
}

}  // namespace kvtwin
