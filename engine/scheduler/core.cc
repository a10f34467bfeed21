#include "engine/scheduler/core.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/planted.h"
#include "engine/base/prng.h"
#include "engine/methods/registry.h"
#include "engine/scheduler/core_state.h"

namespace kvtwin {

namespace {

// Logical pages with a KV entry in a page, and those whose KV entries all wait.
uint32_t logical_pages_max(const CoreConfig& c) {
  const uint64_t waiting = uint64_t{c.requests_max} * (c.page_tokens + 1);
  return static_cast<uint32_t>(std::min<uint64_t>(c.pages_gpu + waiting, UINT32_MAX / 2));
}

// Layouts that keep slots share pages by position; others share prefix checkpoints.
std::unique_ptr<PrefixCheckpointCache> make_prefix_checkpoints(const CoreConfig& c,
                                                               const Retention& retention) {
  if (!c.prefix_cache || retention.slot_retention() != SlotRetention::kMove) return nullptr;
  return std::make_unique<PrefixCheckpointCache>(retention.chunk_tokens() / c.unit_tokens, c.pages_gpu,
                                                 retention.shape(),
                                                 make_prefix_eviction(c, retention.chunk_tokens()));
}

std::unique_ptr<MixedPrecisionPool> make_mixed_precision_pool(const CoreConfig& c, const PolicyAxes& axes) {
  if (!axes.precision->by_tag()) return nullptr;
  return std::make_unique<MixedPrecisionPool>(
      MixedPrecisionPoolSize{c.pages_int2, c.pages_gpu - c.pages_int2}, c.page_tokens,
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
  return state_->requests_live == 0 && state_->launches.empty() && state_->transfers.live() == 0 &&
         state_->handed_over.empty();
}

uint32_t Core::tokens_cached(const RequestReady& request) const {
  const State& s = *state_;
  const auto name_space = s.axes.identity->name_space(request.session);
  if (!s.config.prefix_cache || !name_space.has_value()) return 0;
  if (s.prefix_checkpoints) {
    const uint32_t chunk = s.retention.chunk_tokens();
    return s.prefix_checkpoints->find(*name_space, request.identity, request.prompt_tokens / chunk) * chunk;
  }
  const uint32_t page = s.config.page_tokens;
  return s.index.find_on_gpu(*name_space, request.identity, request.prompt_tokens / page) * page;
}

uint64_t Core::digest() const { return draw({state_->digest.sum(), state_->done}); }

Core::State::State(const CoreConfig& c, PolicyAxes policies)
    : config(c),
      axes(std::move(policies)),
      retention(config, axes),
      fit(config, axes, retention),
      resident(axes.placement->uses_resident()),
      exact_tail(axes.precision->by_tag() ? 0 : axes.precision->exact_tokens_max()),
      mixed(make_mixed_precision_pool(c, axes)),
      gpu(PageId{0}, mixed ? logical_pages_max(c) : c.pages_gpu, c.page_order),
      host(c.pages_host == 0
               ? nullptr
               : std::make_unique<PagePool>(PageId{c.pages_gpu}, c.pages_host, PageOrder::kLowestFirst)),
      disk(c.pages_disk == 0 ? nullptr
                             : std::make_unique<PagePool>(PageId{c.pages_gpu + c.pages_host}, c.pages_disk,
                                                          PageOrder::kLowestFirst)),
      index(c.page_tokens / c.unit_tokens, resident ? host.get() : &gpu, resident ? nullptr : host.get(),
            make_prefix_eviction(c, c.page_tokens), mixed.get(), disk.get()),
      prefix_checkpoints(make_prefix_checkpoints(c, retention)),
      sessions(axes.identity->session_states_max()),
      tiers{&gpu, host.get(), disk.get(), &index, mixed.get()},
      transfers(c.engine, tiers, {c.offload_pages_target, c.spill_pages_target, c.offload_batch_pages},
                &digest) {
  KVT_CHECK(!validate_limits(c).has_value());
  KVT_CHECK(!validate_axes(axes, c.policies, c).has_value());
}

void Core::State::apply(Instant at, const Event& event, std::vector<Command>* commands) {
  KVT_CHECK(at >= now);
  now = at;
  out = commands;
  if (!std::holds_alternative<StepDone>(event)) cut_coalesced();
  std::visit([this](const auto& e) { on(e); }, event);
  while (plan_step()) {
  }
  start_copies_down();
  out = nullptr;
}

// --- requests come and go

void Core::State::on(const RequestReady& event) {
  if (reject(event)) return;
  const RequestIndex request_index = take_request_index();
  RequestState& request = requests[request_index];
  request.id = event.request;
  request.key = event.key();
  request.prompt = event.prompt_tokens;
  request.output = event.output_tokens;
  if (config.prefill_only && event.output_tokens > 1) {
    request.output = 1;
    request.hands_over = true;
  }
  request.identity.assign(event.identity.begin(), event.identity.end());
  request.triggers.assign(event.triggers.begin(), event.triggers.end());
  if (mixed) {
    request.kv_entries.prompt = event.prompt_tokens;
    bits_of(event.roles, event.turn, event.prompt_tokens, config.policies.precision_spec,
            &request.kv_entries.bits);
  }
  uint64_t units = 0, units_public = 0;
  for (const UnitRun& run : request.identity) {
    if ((run.space & kPrivateSpace) == 0 && units_public == units) units_public += run.count;
    units += run.count;
  }
  const uint32_t page_units = config.page_tokens / config.unit_tokens;
  const auto name_space = axes.identity->name_space(event.session);
  const bool cached = config.prefix_cache && name_space.has_value();
  request.name_space = name_space.value_or(0);
  if (prefix_checkpoints) {
    const uint32_t chunk_units = retention.chunk_tokens() / config.unit_tokens;
    request.chunks_public = cached ? static_cast<uint32_t>(units_public / chunk_units) : 0;
  } else {
    request.pages_public = cached ? static_cast<uint32_t>(units_public / page_units) : 0;
    request.pages_known = cached ? static_cast<uint32_t>(units / page_units) : 0;
  }
  request.phase = RequestState::Phase::kWaiting;
  if (event.emitted > 0) begin_arrival(event, &request);
  if (raw(event.request) >= slots.size()) slots.resize(raw(event.request) + 1, UINT32_MAX);
  slots[raw(event.request)] = request_index;
  waiting.push_back(request_index);
  transfers.allow_copies_down();
  ++requests_live;
  sessions.begin(event.session);
  session_here(event.session);
  drop_surplus_sessions();
}

// Drops the state of sessions beyond the number that the backend retains.
void Core::State::drop_surplus_sessions() {
  for (SessionId session; sessions.take_surplus(&session);) {
    digest.add(kSessionDropped, raw(session));
    out->push_back(DropSessionState{config.engine, session});
  }
}

bool Core::State::reject(const RequestReady& event) {
  const std::optional<Misfit> misfit = fit.misfit(event);
  if (!misfit.has_value()) return false;
  digest.add(kRejected, raw(event.request), static_cast<uint64_t>(misfit->reason));
  out->push_back(RejectRequest{config.engine, event.request, misfit->reason, misfit->needed, misfit->limit});
  if (event.emitted > 0) out->push_back(SourceRead{config.engine, event.request, event.from});
  return true;
}

void Core::State::on(const RequestCancelled& event) {
  const RequestIndex request_index = request_index_of(event.request);
  if (request_index == UINT32_MAX) return;  // it ended at this instant
  RequestState& request = requests[request_index];
  request.ending = request.cancelled = true;
  for (Launch& launch : launches) {
    for (const Launch::Member& member : launch.members) {
      if (member.request == event.request) launch.decisive = true;
    }
  }
  if (request.launches == 0) end_request(request_index);
}

void Core::State::on(const Timer&) {}  // no policy sets one yet

void Core::State::end_request(RequestIndex request_index) {
  RequestState& request = requests[request_index];
  transfers.allow_copies_down();
  if (request.phase == RequestState::Phase::kWaiting) {
    waiting.erase(std::find(waiting.begin(), waiting.end(), request_index));
    if (!request.host_pages.empty()) detach_from_host(&request);
    if (request.arrives) drop_source(&request);
  } else if (request.phase == RequestState::Phase::kSwappedOut) {
    transfers.leave(request.id);
  } else if (request.phase == RequestState::Phase::kLoading) {
    transfers.leave(request.id);
    drop_reservation(&request);
  } else if (request.phase == RequestState::Phase::kRunning) {
    running.erase(std::find(running.begin(), running.end(), request_index));
    detach(&request, false);
  }
  digest.add(kEnded, done, raw(request.id), request.emitted);
  out->push_back(FinishRequest{config.engine, request.id, request.emitted, request.cancelled});
  out->push_back(DropRequestState{
      config.engine, request.id,
      request.cancelled ? DropRequestState::Reason::kCancelled : DropRequestState::Reason::kFinished});
  forget(request_index);
}

// The request has ended on this engine: its state can be reused.
void Core::State::forget(RequestIndex request_index) {
  RequestState& request = requests[request_index];
  slots[raw(request.id)] = UINT32_MAX;
  request.phase = RequestState::Phase::kUnused;
  unused.push_back(request_index);
  --requests_live;
  sessions.end(request.key.session);
  session_left(request.key.session);
  drop_surplus_sessions();
}

// Releases a running request's pages: reusable ones to the index, the others to the pool, last page first.
void Core::State::detach(RequestState* request, bool preempted) {
  entries_held -= kv_entries_of(*request, request->kv);
  pages_running -= table_pages(*request);
  // Mixed precision: an entry planned for it in this step will not be computed.
  const uint32_t settled = mixed ? std::min(request->settled, request->kv / config.page_tokens)
                                 : pages_settled(*request, request->kv);
  publish_pages(request, std::min(settled, preempted ? request->pages_known : request->pages_public));
  if (KVT_PLANTED(leak_on_preempt) && preempted && !request->pages.empty()) request->pages.pop_back();
  for (auto page = request->pages.rbegin(); page != request->pages.rend(); ++page) {
    if (*page != kNoPage) free_page(*page);
  }
  request->pages.clear();
  spare_pages.clear();
  request->tables.clear(&spare_pages);
  for (const PageId page : spare_pages) free_page(page);
  request->dropped_slots = request->dropped_tokens = request->dropped_soon = 0;
  request->page_dropped.clear();
  prefixes().mark(prefix_checkpoints ? request->prefix_checkpoints : request->pin, request->key.session);
  if (!KVT_PLANTED(stale_pin) || !preempted) index.release(request->pin, true);
  request->pin = {};
  if (prefix_checkpoints) prefix_checkpoints->release(request->prefix_checkpoints, true);
  request->prefix_checkpoints = {};
  reserved_total -= request->reserved;
  reserved_2_total -= request->reserved_2;
  request->reserved = request->beyond = request->reserved_2 = 0;
  MixedPrecisionPool::reset(&request->kv_entries);
  if (resident) detach_from_host(request);
}

void Core::State::publish_pages(RequestState* request, uint32_t pages_limit) {
  if (request->insert_barred || pages_limit <= request->pin.pages) return;
  std::vector<PageId>& own = own_pages(request);
  const std::span<const PageId> pages(own.data(), pages_limit - request->pin.pages);
  const size_t first = request->pin.pages;
  const std::span<const uint16_t> dropped_tokens = request->page_dropped.size() > first
                                                       ? std::span(request->page_dropped).subspan(first)
                                                       : std::span<const uint16_t>{};
  if (index.insert(request->name_space, request->identity, pages, &request->pin,
                   dropped_tokens.subspan(0, std::min(dropped_tokens.size(), pages.size())))) {
    own.erase(own.begin(), own.begin() + static_cast<ptrdiff_t>(pages.size()));
  } else {
    request->insert_barred = true;
  }
}

RequestIndex Core::State::take_request_index() {
  if (unused.empty()) {
    requests.emplace_back();
    return static_cast<RequestIndex>(requests.size() - 1);
  }
  const RequestIndex request_index = unused.back();
  unused.pop_back();
  RequestState& request = requests[request_index];
  RequestState fresh;
  fresh.pages = std::move(request.pages);  // keeps the allocated capacity
  fresh.host_pages = std::move(request.host_pages);
  fresh.identity = std::move(request.identity);
  fresh.triggers = std::move(request.triggers);
  fresh.source = std::move(request.source);
  fresh.tables = std::move(request.tables);
  fresh.page_dropped = std::move(request.page_dropped);
  fresh.page_dropped.clear();
  fresh.kv_entries = std::move(request.kv_entries);
  MixedPrecisionPool::reset(&fresh.kv_entries);
  request = std::move(fresh);
  return request_index;
}

RequestIndex Core::State::request_index_of(RequestId request) const {
  return raw(request) < slots.size() ? slots[raw(request)] : UINT32_MAX;
}

// --- queries

CoreGauges Core::gauges() const {
  const State& s = *state_;
  // Excludes pages and KV entries of steps that the backend could not have started yet.
  uint64_t pages_ahead = 0, host_ahead = 0, entries_ahead = 0;
  if (!s.launches.empty()) {
    const Launch& last = s.launches.back();
    const uint64_t started = std::max(last.first + 1, s.done + s.config.steps_in_flight_max);
    if (started < last.end) {
      const auto steps = static_cast<uint32_t>(last.end - started);
      for (const Launch::Member& member : last.members) {
        const RequestState& request = s.requests[member.request_index];
        entries_ahead += s.kv_entries_of(request, request.kv) - s.kv_entries_of(request, request.kv - steps);
      }
      const auto ahead = std::lower_bound(
          last.allocations.begin(), last.allocations.end(), started - last.first,
          [](const PageAllocation& allocation, uint64_t offset) { return allocation.offset < offset; });
      host_ahead = static_cast<uint64_t>(
          std::count_if(ahead, last.allocations.end(),
                        [&s](const PageAllocation& allocation) { return s.on_host(allocation.page); }));
      pages_ahead = static_cast<uint64_t>(last.allocations.end() - ahead) - host_ahead;
    }
  }
  CoreGauges g;
  g.requests_running = static_cast<uint32_t>(s.running.size());
  g.requests_waiting = s.requests_live - g.requests_running;
  g.step_in_flight = !s.launches.empty();
  g.pages_gpu_total = s.gpu.pages_total();
  g.pages_gpu_free = s.gpu.pages_free() + static_cast<uint32_t>(pages_ahead);
  g.pages_gpu_cached = s.pages_evictable();
  if (s.mixed) {
    g.pages_gpu_total = s.config.pages_gpu;
    g.pages_gpu_free =
        s.mixed->pages_free(false) + s.mixed->pages_free(true) + static_cast<uint32_t>(pages_ahead);
    g.pages_gpu_cached = s.mixed->pages_evictable(false) + s.mixed->pages_evictable(true);
    g.pages_int2_total = s.config.pages_int2;
    g.pages_int2_held = s.config.pages_int2 - s.mixed->pages_free(false) - s.mixed->pages_evictable(false);
  }
  g.pages_gpu_held = g.pages_gpu_total - g.pages_gpu_free - g.pages_gpu_cached;
  g.pages_evicted = s.index.pages_evicted() + s.prefix_checkpoints_evicted;
  g.pages_host_total = s.host ? s.host->pages_total() : 0;
  g.pages_host_free = s.host ? s.host->pages_free() + static_cast<uint32_t>(host_ahead) : 0;
  g.pages_disk_total = s.config.pages_disk;
  g.pages_disk_free = s.disk ? s.disk->pages_free() : 0;
  g.entries_held = s.entries_held - entries_ahead;
  g.slots_held = (s.pages_running - (s.resident ? host_ahead : pages_ahead)) * s.config.page_tokens;
  if (s.mixed) {  // KV entries that wait for a full group have slots in staging
    for (const RequestIndex request_index : s.running)
      g.slots_held += s.requests[request_index].kv_entries.waiting.size();
  }
  return g;
}

void Core::check_invariants() const { state_->check_invariants(); }

// The pages of a running request.
void Core::State::check_running(const RequestState& r) const {
  for (const PageId page : r.host_pages) KVT_CHECK(host->owned(page));
  for (const PageId page : r.pages) KVT_CHECK(page == kNoPage || gpu.owned(page));
  KVT_CHECK(r.dropped_slots ==
            index.dropped_slots(r.pin) + std::count(r.pages.begin(), r.pages.end(), kNoPage));
  if (resident) {
    KVT_CHECK(uint64_t{table_pages(r)} * config.page_tokens >= r.kv - r.dropped_tokens);
    KVT_CHECK(!r.in_resident || r.pages.size() == gpu_pages_held(config.policies.retrieval_spec,
                                                                 config.page_tokens, table_pages(r)));
  } else if (!retention.by_group()) {
    KVT_CHECK(!mixed || r.kv_entries.at == r.kv);
    KVT_CHECK(uint64_t{r.pages_span()} * config.page_tokens >= r.kv);
    KVT_CHECK(kv_entries_of(r, r.kv) <= uint64_t{r.pages_held()} * config.page_tokens);
  } else {
    KVT_CHECK(r.pages.empty());
    r.tables.check(r.kv);
    for (uint32_t g = 0; g < r.tables.groups(); ++g) {
      for (uint32_t i = 0; i < r.tables.pages(g); ++i) KVT_CHECK(gpu.owned(r.tables.page(g, i)));
    }
  }
}

// free + owned by requests + owned by the index + in flight = capacity, in each tier.
void Core::State::check_invariants() const {
  gpu.check_invariants();
  if (host) host->check_invariants();
  if (disk) disk->check_invariants();
  index.check_invariants();
  if (prefix_checkpoints) prefix_checkpoints->check_invariants();
  sessions.check_invariants();
  uint64_t pages_own = 0, host_own = 0, kv_entries = 0, held = 0, reserved = 0, reserved_host = 0, live = 0;
  uint64_t loading = 0;
  for (const RequestState& r : requests) {
    if (r.phase == RequestState::Phase::kUnused) continue;
    ++live;
    loading += r.phase == RequestState::Phase::kLoading ? 1 : 0;
    KVT_CHECK(r.emitted <= r.sampled);
    KVT_CHECK(r.sampled <= r.output);
    reserved += r.reserved;
    reserved_host += r.reserved_host;
    if (r.phase != RequestState::Phase::kRunning) {
      KVT_CHECK(r.pages.empty());
      KVT_CHECK(r.host_pages.empty() || r.phase == RequestState::Phase::kWaiting);
      // A waiting request has its KV on the host, or none.
      KVT_CHECK(r.kv == 0 || !r.host_pages.empty() || r.phase != RequestState::Phase::kWaiting);
      host_own += r.host_pages.size();
      KVT_CHECK(r.tables.pages() == 0);
      KVT_CHECK(r.pin.pages == 0);
      KVT_CHECK(r.prefix_checkpoints.pages == 0);
      continue;
    }
    kv_entries += kv_entries_of(r, r.kv);
    held += table_pages(r);
    host_own += r.host_pages.size();
    check_running(r);
    pages_own += r.pages_held() - (r.pin.pages - index.dropped_slots(r.pin)) - r.tables.lent();
  }
  const TransferManager::PagesInFlight in_flight = transfers.pages_in_flight();
  pages_own += pages_handed_over();
  KVT_CHECK(live == requests_live);
  KVT_CHECK(loading == transfers.requests_loading());
  KVT_CHECK(kv_entries == entries_held);
  KVT_CHECK(held == pages_running);
  KVT_CHECK(reserved == reserved_total);
  KVT_CHECK(reserved_host == reserved_host_total);
  const uint32_t in_prefix_checkpoints = prefix_checkpoints ? prefix_checkpoints->pages() : 0;
  const uint32_t in_index = resident ? 0 : index.pages_gpu();
  const uint32_t host_in_index = resident ? index.pages_gpu() : index.pages_host();
  KVT_CHECK(gpu.pages_owned() == pages_own + in_index + in_prefix_checkpoints + in_flight.gpu);
  KVT_CHECK(!host || host->pages_owned() == host_own + host_in_index + in_flight.host);
  KVT_CHECK(!disk || disk->pages_owned() == index.pages_disk() + in_flight.disk);
  KVT_CHECK(running.size() <= config.requests_max);
  KVT_CHECK(launched >= done);
  check_reserves();
  KVT_CHECK(!host || reserved_host_total <= host->pages_free() + (resident ? index.pages_evictable() : 0));
}

}  // namespace kvtwin
