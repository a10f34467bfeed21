// Core: ends of steps. Tokens are emitted and requests finish; external events end coalesced runs.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/scheduler/core_state.h"

namespace kvtwin {

void Core::State::on(const StepDone& event) {
  KVT_CHECK(!launches.empty());
  KVT_CHECK(raw(event.step) == done);
  Launch& launch = launches.front();
  const auto steps = static_cast<uint32_t>(event.ends.size());
  KVT_CHECK(steps > 0);
  KVT_CHECK(done + steps <= launch.end);
  done += steps;
  if (!launch.compressions.empty()) apply_retained(event, launch);
  for (const Launch::Member& member : launch.members) {
    if (member.samples) emit(member, steps);
  }
  for (const RequestId id : event.eos) end_early(id);
  if (done == launch.end) close_launch();
}

void Core::State::emit(const Launch::Member& member, uint32_t steps) {
  RequestState& request = requests[member.request_index];
  KVT_CHECK(request.id == member.request);
  if (request.ending) return;  // a token sampled after the request's end is ignored
  const bool first = request.emitted == 0;
  request.emitted += steps;
  bool tell = first;
  while (request.next_trigger < request.triggers.size() &&
         request.triggers[request.next_trigger] <= request.emitted) {
    tell = true;
    ++request.next_trigger;
  }
  if (tell) out->push_back(TokensEmitted{config.engine, request.id, request.emitted});
}

void Core::State::end_early(RequestId id) {
  const RequestIndex request_index = request_index_of(id);
  if (request_index == UINT32_MAX) return;
  requests[request_index].ending = true;
  for (size_t i = 0; i < launches.size(); ++i) {
    for (const Launch::Member& member : launches[i].members) {
      if (member.request == id) launches[i].decisive = true;
    }
  }
  // The backend ends the coalesced run here; with two steps in flight one more step of it was already
  // launched.
  if (launches.back().end > done + config.steps_in_flight_max - 1)
    shorten_last(done + config.steps_in_flight_max - 1);
}

void Core::State::close_launch() {
  spare.push_back(std::move(launches.front()));
  launches.erase(launches.begin());
  const Launch& launch = spare.back();
  if (resident && config.prefix_cache) publish_host_copies(launch);
  ended.clear();
  for (const Launch::Member& member : launch.members) {
    RequestState& request = requests[member.request_index];
    KVT_CHECK(request.launches > 0);
    --request.launches;
    const bool complete =
        request.emitted == request.output && (request.output > 0 || request.kv >= request.prompt);
    if (request.launches == 0 && (request.ending || complete)) {
      ended.push_back(member.request_index);
    } else if (request.launches == 0 && request.phase == RequestState::Phase::kSwappedOut) {
      transfers.submit_swap_out(request.id, out);  // no step writes its pages any more
    }
  }
  for (const RequestIndex request_index : ended) {
    const RequestState& request = requests[request_index];
    const bool hands_over = request.hands_over && !request.ending;
    // Preempted after its last step: its prompt must be computed again before it can be handed over.
    if (hands_over && (request.phase != RequestState::Phase::kRunning || request.kv < request.prompt))
      continue;
    hands_over ? hand_over(request_index) : end_request(request_index);
  }
}

// An external event is about to be delivered. The backend completes the running step, and with two in flight
// the one after it; the rest of a coalesced run never runs (backend.h, interrupt).
void Core::State::cut_coalesced() {
  if (launches.empty()) return;
  const uint64_t end = std::max(done + config.steps_in_flight_max, launches.back().first + 1);
  if (end < launches.back().end) shorten_last(end);
}

// Undoes the plan of steps [end, last.end) exactly.
void Core::State::shorten_last(uint64_t end) {
  Launch& last = launches.back();
  KVT_CHECK(end > last.first);
  KVT_CHECK(end >= done);
  const auto steps = static_cast<uint32_t>(last.end - end);
  for (size_t i = last.allocations.size(); i > 0 && last.first + last.allocations[i - 1].offset >= end; --i) {
    note_allocation(last, last.allocations[i - 1], false);
  }
  roll_back_allocations(&last, static_cast<uint32_t>(end - last.first));
  for (const Launch::Member& member : last.members) {
    RequestState& request = requests[member.request_index];
    entries_held -= kv_entries_of(request, request.kv) - kv_entries_of(request, request.kv - steps);
    if (mixed) shrink_entries(&request, request.kv - steps);
    request.kv -= steps;
    request.sampled -= steps;
  }
  last.end = launched = end;
  last.decisive = false;
  for (const Launch::Member& member : last.members) {
    last.decisive = last.decisive || requests[member.request_index].launched_out();
  }
}

// Returns the pages for steps [offset, ...) of the launch to the pool, as an exact undo.
void Core::State::roll_back_allocations(Launch* launch, uint32_t offset) {
  while (!launch->allocations.empty() && launch->allocations.back().offset >= offset) {
    const PageAllocation allocation = launch->allocations.back();
    launch->allocations.pop_back();
    RequestState& request = requests[launch->members[allocation.entry].request_index];
    if (resident) {
      roll_back_resident_page(&request, allocation.page);
      continue;
    }
    if (mixed) {
      mixed->roll_back_page(logical_pages_of(request), &request.kv_entries);
      note_untaken(&request);
      continue;
    }
    if (retention.by_group()) {
      const PageId page = request.tables.take_last(allocation.group);
      KVT_CHECK(page == allocation.page);
    } else {
      KVT_CHECK(request.pages.back() == allocation.page);
      request.pages.pop_back();
    }
    gpu.roll_back(allocation.page);
    note_untaken(&request);
  }
}

}  // namespace kvtwin
