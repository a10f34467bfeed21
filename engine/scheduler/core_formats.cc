// Core: mixed precision by tag (TriAxialKV), with int2 and int4 pages (mixed_precision_pool.h).
//
// A request's `pages`, its pin and the prefix index hold logical pages, which are never short; pages are. The
// number that a step takes follows from the bits of the prompt's tokens, which are known when the request
// arrives. An int2 page is available if it is free or only cached prefixes use it; otherwise 2-bit KV entries
// spill to int4. If an int4 page is missing, cached prefixes are evicted, then the newest request is
// preempted.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/scheduler/core_state.h"

namespace kvtwin {

// Pages of one format that the request may take; pages reserved for others are excluded.
uint32_t Core::State::entries_available(const RequestState& request, bool four) const {
  const uint64_t had = uint64_t{mixed->pages_free(four)} + mixed->pages_evictable(four);
  const uint64_t others = four ? reserved_total - request.reserved : reserved_2_total - request.reserved_2;
  return static_cast<uint32_t>(had > others ? had - others : 0);
}

Core::State::Admitted Core::State::admit_to_pools(RequestIndex request_index) {
  RequestState& request = requests[request_index];
  const bool reserves = config.admission == AdmissionKind::kFullReservation;
  Match match;
  if (request.pages_known > 0 && !request.reuse_barred) {
    const uint32_t logical_pages_most =
        std::min((request.known() - 1) / config.page_tokens, request.pages_known);
    match = index.acquire(request.name_space, request.identity, logical_pages_most);
  }
  const uint32_t cached = match.pin.pages * config.page_tokens;
  logical_pages.clear();
  reusing.clear();
  index.gpu_pages(match.pin, &logical_pages);
  mixed->begin(cached, logical_pages, &request.kv_entries, &reusing);
  const uint32_t tokens = entry_tokens(request, cached, false);
  uint32_t covered = tokens;
  if (config.admission == AdmissionKind::kFullPrompt) covered = request.known() - cached;
  if (reserves) covered = request.prompt + request.output - cached;
  const MixedPrecisionDemand demand =
      mixed->demand(request.kv_entries, covered, entries_available(request, false));
  // The pin itself may have taken pages that are reserved for others.
  const bool robs = reserved_total > uint64_t{mixed->pages_free(true)} + mixed->pages_evictable(true) ||
                    reserved_2_total > uint64_t{mixed->pages_free(false)} + mixed->pages_evictable(false);
  if (tokens == 0 || robs ||
      uint64_t{demand.pages_4} + config.watermark_pages > entries_available(request, true)) {
    MixedPrecisionPool::reset(&request.kv_entries);
    index.release(match.pin, false);
    // Pages of its prefix also hold KV entries of others; alone, it fits without them (RequestFit).
    if (!running.empty() || match.pin.pages == 0 || tokens == 0) return Admitted::kBlocked;
    request.reuse_barred = true;
    return admit_to_pools(request_index);
  }
  if (config.policies.precision_spec.ageing == Ageing::kRequantise && cached > 0) {
    age_prefix(request, match.pin, demand.pages_2);
    reusing.clear();
    mixed->begin(cached, logical_pages, &request.kv_entries, &reusing);
  }
  let_in(request_index, cached);
  request.pin = match.pin;
  request.settled = UINT32_MAX;
  entries_held += kv_entries_of(request, cached);
  pages_running += request.kv_entries.reused_pages;
  if (reserves) {
    request.reserved = demand.pages_4;
    request.reserved_2 = demand.pages_2;
    reserved_total += demand.pages_4;
    reserved_2_total += demand.pages_2;
  }
  const size_t allocated_before = allocated.size();
  const bool grown = grow_entries(&request, tokens);
  KVT_CHECK(grown);
  add_entry(request_index, tokens, allocated_before);
  return Admitted::kYes;
}

// Turns have aged since the prefix was written (docs/design/methods/triaxialkv.md#serving). KV entries that
// have 2 bits by now are requantised, as far as int2 pages are free: no cached prefix is evicted for them,
// and the rest waits for the next turn. KV entries that another request reads do not change. REQUIRES:
// `logical_pages` are the prefix's.
void Core::State::age_prefix(const RequestState& request, const Pin& prefix, uint32_t pages_2_wanted) {
  alone.clear();
  for (uint32_t i = 0; i < prefix.pages; ++i) alone.push_back(index.sole(prefix, i) ? 1 : 0);
  const uint32_t left = entries_available(request, false) - pages_2_wanted;
  mixed->age(request.kv_entries, logical_pages, alone, std::min(left, mixed->pages_free(false)),
             &requantisations);
}

// grow() for mixed precision.
bool Core::State::grow_entries(RequestState* request, uint32_t tokens) {
  const MixedPrecisionDemand demand =
      mixed->demand(request->kv_entries, tokens, entries_available(*request, false));
  if (demand.pages_4 > entries_available(*request, true)) return false;
  make_room(demand);
  add_logical_pages(request, request->kv + tokens);
  request->low_bit = request->kv_entries.reused_entries_2 + request->kv_entries.pages_2 * config.page_tokens;
  newly_taken.clear();
  entry_bits.clear();
  mixed->append(tokens, demand.pages_2, logical_pages_of(*request), &request->kv_entries, &newly_taken,
                &entry_bits);
  KVT_CHECK(newly_taken.size() == demand.pages_2 + demand.pages_4);
  for (const PageId page : newly_taken) allocated.push_back({page, 0});
  const uint32_t from_reserve = std::min(request->reserved_2, demand.pages_2);
  request->reserved_2 -= from_reserve;
  reserved_2_total -= from_reserve;
  pages_running += demand.pages_2;
  note_taken(request, demand.pages_4);
  return true;
}

// Evicts until the demanded pages are free. REQUIRES: that many are free or evictable.
void Core::State::make_room(const MixedPrecisionDemand& demand) {
  const auto short_of = [&] {
    return mixed->pages_free(false) < demand.pages_2 || mixed->pages_free(true) < demand.pages_4;
  };
  if (!short_of()) return;
  evicted_now = true;
  for (uint32_t i = 0; short_of() || (i < config.evict_batch_pages && index.pages_evictable() > 0); ++i)
    free_page(index.evict_gpu_page());
}

void Core::State::add_logical_pages(RequestState* request, uint32_t tokens) {
  while (uint64_t{request->pages_span()} * config.page_tokens < tokens) {
    const PageId logical_page = gpu.acquire();
    mixed->hold({&logical_page, 1}, true);
    request->pages.push_back(logical_page);
  }
}

// Further steps of a coalesced run: decoded KV entries, whose pages allocate_ahead_entries() has taken.
void Core::State::extend_entries(RequestState* request, uint32_t tokens) {
  add_logical_pages(request, request->kv + tokens);
  newly_taken.clear();
  entry_bits.clear();
  mixed->append(tokens, 0, logical_pages_of(*request), &request->kv_entries, &newly_taken, &entry_bits);
  KVT_CHECK(newly_taken.empty());
}

// Removes decoded KV entries exactly as if they had not been planned.
void Core::State::shrink_entries(RequestState* request, uint32_t tokens) {
  mixed->truncate(tokens, logical_pages_of(*request), &request->kv_entries);
  while (uint64_t{request->pages_span() - 1} * config.page_tokens >= tokens) {
    free_page(request->pages.back());
    request->pages.pop_back();
  }
}

// allocate_ahead() for mixed precision.
uint32_t Core::State::allocate_ahead_entries(uint32_t steps, Launch* launch) {
  const uint32_t page = config.page_tokens;
  crossings.clear();
  for (uint32_t entry = 0; entry < launch->members.size(); ++entry) {
    const MixedPrecisionPool::Request& kv_entries = requests[launch->members[entry].request_index].kv_entries;
    const auto room = static_cast<uint32_t>(kv_entries.pages_4.size()) * page;
    crossings.push_back({room - kv_entries.entries_4 + 1, entry});
  }
  std::sort(crossings.begin(), crossings.end());
  for (uint32_t window = 0; window < steps; window += page) {
    for (const auto& [first, entry] : crossings) {
      const uint32_t offset = first + window;
      if (offset >= steps) break;
      if (mixed->pages_free(true) == 0) {
        roll_back_allocations(launch, offset);
        return offset;
      }
      RequestState& request = requests[launch->members[entry].request_index];
      launch->allocations.push_back({offset, entry, mixed->take_ahead(&request.kv_entries)});
      note_taken(&request, 1);
    }
  }
  return steps;
}

// Checks X-4 and the additional invariants of mixed precision.
void Core::State::check_reserves() const {
  if (!mixed) {
    KVT_CHECK(reserved_total <= uint64_t{gpu.pages_free()} + pages_evictable());
    return;
  }
  uint64_t own = 0, reserved_2 = 0;
  for (const RequestState& request : requests) {
    if (request.phase == RequestState::Phase::kUnused) continue;
    reserved_2 += request.reserved_2;
    own += request.pages.size();
  }
  KVT_CHECK(reserved_2 == reserved_2_total);
  mixed->check_invariants(own + index.pages_gpu() - index.pages_evictable());
  for (const bool four : {false, true}) {
    KVT_CHECK((four ? reserved_total : reserved_2_total) <=
              uint64_t{mixed->pages_free(four)} + mixed->pages_evictable(four));
  }
}

}  // namespace kvtwin
