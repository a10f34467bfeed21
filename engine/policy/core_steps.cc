// Steps end: tokens exist, calls finish; and what happens to a stretch that something from outside ends.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/policy/core_state.h"

namespace kvtwin {

void Core::State::on(const StepDone& event) {
  KVT_CHECK(!launches.empty());
  KVT_CHECK(raw(event.step) == done);
  Launch& launch = launches.front();
  const auto steps = static_cast<uint32_t>(event.ends.size());
  KVT_CHECK(steps > 0);
  KVT_CHECK(done + steps <= launch.end);
  done += steps;
  if (!launch.compressions.empty()) apply_kept(event, launch);
  for (const Launch::Member& member : launch.members) {
    if (member.samples) emit(member, steps);
  }
  for (const CallId id : event.eos) end_early(id);
  if (done == launch.end) close_launch();
}

void Core::State::emit(const Launch::Member& member, uint32_t steps) {
  CallState& call = calls[member.slot];
  KVT_CHECK(call.id == member.call);
  if (call.ending) return;  // sampled behind its end: nobody sees it
  const bool first = call.emitted == 0;
  call.emitted += steps;
  bool tell = first;
  while (call.next_trigger < call.triggers.size() && call.triggers[call.next_trigger] <= call.emitted) {
    tell = true;
    ++call.next_trigger;
  }
  if (tell) out->push_back(TokensEmitted{config.engine, call.id, call.emitted});
}

void Core::State::end_early(CallId id) {
  const Slot slot = slot_of(id);
  if (slot == UINT32_MAX) return;
  calls[slot].ending = true;
  for (size_t i = 0; i < launches.size(); ++i) {
    for (const Launch::Member& member : launches[i].members) {
      if (member.call == id) launches[i].decisive = true;
    }
  }
  // The world stops a stretch here; with two in flight one more step of it was already launched.
  if (launches.back().end > done + config.steps_in_flight_max - 1)
    shorten_last(done + config.steps_in_flight_max - 1);
}

void Core::State::close_launch() {
  spare.push_back(std::move(launches.front()));
  launches.erase(launches.begin());
  const Launch& launch = spare.back();
  if (arena && config.prefix_cache) publish_homes(launch);
  ended.clear();
  for (const Launch::Member& member : launch.members) {
    CallState& call = calls[member.slot];
    KVT_CHECK(call.launches > 0);
    --call.launches;
    const bool complete = call.emitted == call.output && (call.output > 0 || call.kv >= call.prompt);
    if (call.launches == 0 && (call.ending || complete)) {
      ended.push_back(member.slot);
    } else if (call.launches == 0 && call.phase == CallState::Phase::kAway) {
      start_demotion(member.slot);
    }
  }
  for (const Slot slot : ended) {
    const CallState& call = calls[slot];
    const bool hands_over = call.hands_over && !call.ending;
    // Preempted behind its last step: what it would hand over is computed again first.
    if (hands_over && (call.phase != CallState::Phase::kRunning || call.kv < call.prompt)) continue;
    hands_over ? hand_over(slot) : end_call(slot);
  }
}

// Something from outside is about to be told. The world completes the step that runs, and with two in
// flight the one behind it; the rest of a stretch never runs (backend.h, interrupt).
void Core::State::cut_stretch() {
  if (launches.empty()) return;
  const uint64_t end = std::max(done + config.steps_in_flight_max, launches.back().first + 1);
  if (end < launches.back().end) shorten_last(end);
}

// Takes back what was planned for steps [end, last.end): exactly as if it had never been.
void Core::State::shorten_last(uint64_t end) {
  Launch& last = launches.back();
  KVT_CHECK(end > last.first);
  KVT_CHECK(end >= done);
  const auto steps = static_cast<uint32_t>(last.end - end);
  for (size_t i = last.grants.size(); i > 0 && last.first + last.grants[i - 1].offset >= end; --i) {
    digest -= grant_record(last, last.grants[i - 1]);
  }
  give_back_grants(&last, static_cast<uint32_t>(end - last.first));
  for (const Launch::Member& member : last.members) {
    CallState& call = calls[member.slot];
    cells_held -= cells_of(call, call.kv) - cells_of(call, call.kv - steps);
    if (dual) shrink_cells(&call, call.kv - steps);
    call.kv -= steps;
    call.sampled -= steps;
  }
  last.end = launched = end;
  last.decisive = false;
  for (const Launch::Member& member : last.members) {
    last.decisive = last.decisive || calls[member.slot].launched_out();
  }
}

// Pages for steps [offset, ...) of the launch return to the pool as if they had never left it.
void Core::State::give_back_grants(Launch* launch, uint32_t offset) {
  while (!launch->grants.empty() && launch->grants.back().offset >= offset) {
    const PageGrant grant = launch->grants.back();
    launch->grants.pop_back();
    CallState& call = calls[launch->members[grant.entry].slot];
    if (arena) {
      give_back_arena_page(&call, grant.page);
      continue;
    }
    if (dual) {
      dual->give_back_page(frames_of(call), &call.cells);
      note_untaken(&call);
      continue;
    }
    if (retention.by_group()) {
      const PageId page = call.tables.take_last(grant.group);
      KVT_CHECK(page == grant.page);
    } else {
      KVT_CHECK(call.pages.back() == grant.page);
      call.pages.pop_back();
    }
    gpu.unacquire(grant.page);
    note_untaken(&call);
  }
}

}  // namespace kvtwin
