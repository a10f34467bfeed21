#include "engine/recorder/recorder_backend.h"

#include <algorithm>
#include <tuple>

#include "engine/base/check.h"

namespace kvtwin {

RecordedBackend::RecordedBackend(const Log* log) : log_(*log), engines_(log->engines.size()) {
  for (size_t i = 0; i < engines_.size(); ++i) {
    engines_[i].in_flight_max = log_.options.engines[i].steps_in_flight_max;
  }
}

void RecordedBackend::submit(const Command& command) {
  if (const auto* step = std::get_if<LaunchStep>(&command)) {
    Engine& engine = engines_[raw(step->engine)];
    const std::vector<Instant>& ends = log_.engines[raw(step->engine)].ends;
    // A step that ended before it was launched differs from the recorded one: nothing is known from here on.
    engine.lost = engine.lost || (raw(step->step) < ends.size() && ends[raw(step->step)] < now_);
    if (engine.lost) return;
    engine.launches.push_back({raw(step->step), raw(step->step) + step->repeat, false});
  }
  if (const auto* start = std::get_if<StartTransfer>(&command)) {
    const std::vector<Log::Transfer>& known = log_.engines[raw(start->engine)].transfers;
    const auto less = [](const Log::Transfer& one, uint64_t number) { return one.number < number; };
    const auto found = std::lower_bound(known.begin(), known.end(), raw(start->transfer), less);
    if (found == known.end() || found->number != raw(start->transfer)) return;  // never answered
    engines_[raw(start->engine)].transfers.push_back(
        {found->number, std::max(found->at, now_), found->failed});
  }
  if (const auto* timer = std::get_if<SetTimer>(&command)) {
    timers_.push_back({std::max(timer->at, now_), timers_set_++, Timer{timer->engine, timer->timer}});
  }
}

uint64_t RecordedBackend::answer_step(const Engine& engine, const Log::Engine& log) const {
  if (engine.launches.empty()) return UINT64_MAX;
  const Launch& launch = engine.launches.front();
  const uint64_t left = launch.end - launch.step;
  // Two steps in flight: the next is planned while the last one runs, so the last is answered separately.
  const uint64_t answered = launch.single || left == 1 ? 1 : engine.in_flight_max > 1 ? left - 1 : left;
  uint64_t last = launch.step + answered - 1;
  // A step in which a request sampled end-of-sequence is answered at once.
  for (size_t i = engine.next_coalesced; i < log.coalesced_runs.size() && log.coalesced_runs[i].step <= last;
       ++i) {
    if (log.coalesced_runs[i].eos.empty()) continue;
    last = std::min(last, log.coalesced_runs[i].step + log.coalesced_runs[i].steps - 1);
    break;
  }
  return last;
}

bool RecordedBackend::next(Instant* now, Event* event) {
  enum Kind : int { kStep, kTransfer, kTimer };
  // At equal instants: steps by engine, transfers by engine and number, timers in the order they were set.
  using Key = std::tuple<Instant, int, uint64_t, uint64_t>;
  Key best{kNever, 0, 0, 0};
  size_t index = 0;
  for (size_t i = 0; i < engines_.size(); ++i) {
    const uint64_t step = answer_step(engines_[i], log_.engines[i]);
    // Beyond the log: an event from outside cut the launch short, and interrupt() will answer.
    if (step < log_.engines[i].ends.size())
      best = std::min(best, Key{log_.engines[i].ends[step], kStep, i, step});
    for (size_t k = 0; k < engines_[i].transfers.size(); ++k) {
      const Transfer& one = engines_[i].transfers[k];
      const Key key{one.at, kTransfer, i, one.number};
      if (key < best) best = key, index = k;
    }
  }
  for (size_t k = 0; k < timers_.size(); ++k) {
    const Key key{timers_[k].at, kTimer, timers_[k].order, 0};
    if (key < best) best = key, index = k;
  }
  const auto [at, kind, which, number] = best;
  if (at == kNever) return false;
  // A log that contradicts the commands could yield an earlier instant; time never decreases.
  *now = now_ = std::max(now_, at);
  if (kind == kStep) {
    answer(static_cast<uint16_t>(which), number, event);
  } else if (kind == kTransfer) {
    std::vector<Transfer>& transfers = engines_[which].transfers;
    const EngineId engine{static_cast<uint16_t>(which)};
    *event = transfers[index].failed ? Event{TransferFailed{engine, TransferId{number}}}
                                     : Event{TransferDone{engine, TransferId{number}}};
    transfers.erase(transfers.begin() + static_cast<std::ptrdiff_t>(index));
  } else {
    *event = timers_[index].timer;
    timers_.erase(timers_.begin() + static_cast<std::ptrdiff_t>(index));
  }
  return true;
}

void RecordedBackend::answer(uint16_t engine, uint64_t last, Event* event) {
  Engine& here = engines_[engine];
  const Log::Engine& log = log_.engines[engine];
  Launch& launch = here.launches.front();
  StepDone done;
  retained_.clear();
  done.engine = EngineId{engine};
  done.step = StepId{launch.step};
  done.ends = std::span(log.ends).subspan(launch.step, last + 1 - launch.step);
  while (here.next_coalesced < log.coalesced_runs.size()) {
    const Log::CoalescedSteps& coalesced = log.coalesced_runs[here.next_coalesced];
    if (coalesced.step + coalesced.steps - 1 > last) break;
    done.outcome.host = done.outcome.host + coalesced.outcome.host;
    done.outcome.exposed = done.outcome.exposed + coalesced.outcome.exposed;
    done.outcome.hidden = done.outcome.hidden + coalesced.outcome.hidden;
    done.outcome.bytes_in += coalesced.outcome.bytes_in;
    done.outcome.bytes_out += coalesced.outcome.bytes_out;
    done.eos = coalesced.eos;
    retained_.clear();
    for (const Log::Retained& retained : coalesced.retained)
      retained_.push_back({retained.request, retained.counts, retained.live});
    ++here.next_coalesced;
  }
  launch.step = last + 1;
  if (launch.step == launch.end) here.launches.pop_front();
  if (!done.eos.empty()) cut(&here, here.in_flight_max - 1);
  done.retained = retained_;
  *event = done;
}

// Only `open` more steps of the launched ones will run.
void RecordedBackend::cut(Engine* engine, uint64_t open) {
  std::deque<Launch> left;
  for (Launch launch : engine->launches) {
    launch.end = std::min(launch.end, launch.step + open);
    open -= launch.end - launch.step;
    if (launch.end > launch.step) left.push_back(launch);
  }
  engine->launches = std::move(left);
}

bool RecordedBackend::interrupt(EngineId engine, Event* event) {
  Engine& here = engines_[raw(engine)];
  const Log::Engine& log = log_.engines[raw(engine)];
  if (here.launches.empty()) return false;
  const uint64_t first = here.launches.front().step;
  const uint64_t last = answer_step(here, log);
  // Ends ascend, so the steps that have ended come first.
  uint64_t past = first;
  while (past <= last && past < log.ends.size() && log.ends[past] <= now_) ++past;
  if (past > first) {
    answer(static_cast<uint16_t>(raw(engine)), past - 1, event);
    return true;
  }
  cut(&here, here.in_flight_max);
  for (Launch& launch : here.launches) launch.single = true;
  return false;
}

Instant RecordedClient::wake_at() const {
  if (next_ == log_.client.size()) return kNever;
  const Log::ClientStep& step = log_.client[next_];
  return step.from_wake && step.answers <= answers_ ? step.at : kNever;
}

void RecordedClient::wake(Instant now, ClientEvents* events) { tell(now, true, events); }

void RecordedClient::tokens_emitted(Instant now, RequestId, uint32_t, ClientEvents* events) {
  ++answers_;
  tell(now, false, events);
}

void RecordedClient::request_finished(Instant now, RequestId request, uint32_t, bool, ClientEvents* events) {
  ++answers_;
  ended_.insert(raw(request));
  tell(now, false, events);
}

void RecordedClient::request_rejected(Instant now, RequestId request, ClientEvents* events) {
  ++answers_;
  ended_.insert(raw(request));
  tell(now, false, events);
}

void RecordedClient::tell(Instant now, bool from_wake, ClientEvents* events) {
  for (; next_ < log_.client.size(); ++next_) {
    const Log::ClientStep& step = log_.client[next_];
    if (step.from_wake != from_wake || step.answers > answers_ || step.at > now) return;
    const auto* cancel = std::get_if<RequestCancelled>(&step.event);
    if (cancel != nullptr && ended_.count(raw(cancel->request)) > 0) continue;  // only if decisions changed
    events->push_back(step.event);
  }
}

}  // namespace kvtwin
